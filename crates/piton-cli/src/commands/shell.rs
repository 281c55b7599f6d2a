//! Completions and man pages, made of the same command line as `--help`.

use std::io::{self, Write};
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::Shell;

use crate::args::Cli;
use crate::failure::{Failure, Result};

pub(crate) fn completions(shell: Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "piton", &mut script);
    Ok(std::io::stdout().lock().write_all(&script)?)
}

pub(crate) fn man(folder: Option<&Path>) -> Result<()> {
    let mut command = Cli::command();
    command.build();
    let Some(folder) = folder else {
        return Ok(std::io::stdout().lock().write_all(page(&command)?.1.as_bytes())?);
    };
    let cannot = |error| Failure::usage(format!("cannot write to {}: {error}", folder.display()));
    std::fs::create_dir_all(folder).map_err(cannot)?;
    write_pages(&command, folder).map_err(cannot)
}

fn write_pages(command: &Command, folder: &Path) -> io::Result<()> {
    for subcommand in command.get_subcommands() {
        write_pages(subcommand, folder)?;
    }
    let (name, text) = page(command)?;
    std::fs::write(folder.join(name), text)
}

/// The name of a page, and the page.
fn page(command: &Command) -> io::Result<(String, String)> {
    let man = clap_mangen::Man::new(command.clone());
    let mut page = Vec::new();
    man.render(&mut page)?;
    let page = String::from_utf8(page).map_err(io::Error::other)?;
    // The examples are laid out by hand: `man` must not fill their lines.
    let laid_out = page.replacen(".SH EXTRA\n", ".SH EXAMPLES AND MORE\n.nf\n", 1).replacen(
        "\n.SH VERSION",
        "\n.fi\n.SH VERSION",
        1,
    );
    Ok((man.get_filename(), laid_out))
}
