//! `piton-audit FILE`, `piton-audit postgres://… [SCHEMA]`: checks a database and says what it found.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let audited = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [database] => piton_audit::audit(database),
        [url, schema] if url.starts_with("postgres") => piton_audit::audit_postgres(url, schema),
        _ => {
            eprintln!(
                "usage: piton-audit FILE | piton-audit postgres://user@host/database [SCHEMA]"
            );
            return ExitCode::from(2);
        }
    };
    match audited {
        Ok(report) => {
            print!("{report}");
            if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}
