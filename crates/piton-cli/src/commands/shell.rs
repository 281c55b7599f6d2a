//! Completions and man pages, made of the same command line as `--help`.

use std::io::Write;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Cli;
use crate::failure::{Failure, Result};

pub(crate) fn completions(shell: Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "piton", &mut script);
    Ok(std::io::stdout().lock().write_all(&script)?)
}

pub(crate) fn man(folder: Option<&Path>) -> Result<()> {
    let Some(folder) = folder else {
        let mut page = Vec::new();
        clap_mangen::Man::new(Cli::command()).render(&mut page)?;
        return Ok(std::io::stdout().lock().write_all(&page)?);
    };
    let cannot = |error| Failure::usage(format!("cannot write to {}: {error}", folder.display()));
    std::fs::create_dir_all(folder).map_err(cannot)?;
    clap_mangen::generate_to(Cli::command(), folder).map_err(cannot)
}
