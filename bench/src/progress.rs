//! A progress bar on stderr; nothing if that is not a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How far one workload is. The bar disappears with it.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// A workload of `length` units of any size.
    pub(crate) fn start(name: &'static str, length: usize) -> Progress {
        let target = ProgressDrawTarget::stderr();
        let bar = ProgressBar::with_draw_target(Some(length as u64), target).with_message(name);
        let style = ProgressStyle::with_template("{msg:<16} {wide_bar} {percent:>3} % {elapsed}");
        Progress(bar.with_style(style.expect("the template is a constant")))
    }

    /// One unit is done.
    pub(crate) fn step(&self) {
        self.0.inc(1);
    }

    /// So many units are done.
    pub(crate) fn reach(&self, done: usize) {
        self.0.set_position(done as u64);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
