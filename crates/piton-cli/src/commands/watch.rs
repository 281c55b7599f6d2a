//! `instances watch`: a live view on a terminal, a line per change elsewhere.

use std::collections::VecDeque;
use std::io::{IsTerminal, Write};

use crate::api::Instance;
use crate::args::{LogFilter, Target};
use crate::clock;
use crate::failure::Result;
use crate::sentences::doing;
use crate::session::Session;
use crate::text::safe;

use super::logs::{FOLLOW_POLL, Tail, log_line};
use super::look::summary;

/// How many log lines the live view has.
const LINES_SHOWN: usize = 8;

pub(crate) fn watch(session: &Session, target: &Target) -> Result<()> {
    let mut instance = session.client.instance(target)?;
    let mut tail = Tail::new(target, LogFilter::default());
    let mut view = View::new();
    loop {
        let run = instance.meta.run_number;
        if tail.filter.run != Some(run) {
            tail.start_run(run);
            view.lines.clear();
        }
        while tail
            .page(session, &mut |line| view.add(session, log_line(line, session.paint, false)))?
        {
        }
        view.show(session, &instance)?;
        if instance.details.ended() {
            return Ok(());
        }
        clock::wait(FOLLOW_POLL);
        instance = match session.client.instance(target) {
            Err(failure) if failure.passing => {
                view.start_below();
                session.patiently(|| session.client.instance(target))?
            }
            answer => answer?,
        };
    }
}

/// What is on the screen.
struct View {
    live: bool,
    lines: VecDeque<String>,
    /// How many lines were drawn last, to go back over.
    drawn: usize,
    /// What was last said about the instance, without the countdown.
    said: String,
}

impl View {
    fn new() -> Self {
        let live = std::io::stdout().is_terminal();
        Self { live, lines: VecDeque::new(), drawn: 0, said: String::new() }
    }

    /// Leaves what is on the screen where it is: notes come after it.
    fn start_below(&mut self) {
        self.drawn = 0;
    }

    fn add(&mut self, session: &Session, line: String) -> Result<()> {
        if !self.live {
            return session.print(&line);
        }
        self.lines.push_back(line);
        if self.lines.len() > LINES_SHOWN {
            self.lines.pop_front();
        }
        Ok(())
    }

    fn show(&mut self, session: &Session, instance: &Instance) -> Result<()> {
        if self.live { self.redraw(session, instance) } else { self.tell_change(session, instance) }
    }

    fn redraw(&mut self, session: &Session, instance: &Instance) -> Result<()> {
        let mut frame = summary(instance, session.paint, clock::now());
        for line in &self.lines {
            frame.push_str("\n  ");
            frame.push_str(line);
        }
        // Up to where the last frame began, and clear from there. Lines are not wrapped meanwhile, so that a line
        // is a line of the screen; within one write, so that Ctrl-C cannot leave the terminal like that.
        let up = match self.drawn {
            0 => String::new(),
            lines => format!("\x1b[{lines}A\r"),
        };
        self.drawn = frame.lines().count();
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(format!("{up}\x1b[J\x1b[?7l{frame}\x1b[?7h\n").as_bytes())?;
        Ok(stdout.flush()?)
    }

    fn tell_change(&mut self, session: &Session, instance: &Instance) -> Result<()> {
        let now = clock::now();
        let doing = doing(instance, now);
        let what = doing.split(" in ").next().and_then(|what| what.split(": due").next());
        let step = instance.meta.current_step.as_ref().map(|step| step.name.as_str());
        let said = format!("{}{what:?}{step:?}", instance.details.status);
        if said == self.said {
            return Ok(());
        }
        self.said = said;
        let status = session.paint.status(&format!("{:<5}", safe(&instance.details.status)));
        session.print(format!("{}  {status}  {doing}", now.with_ms()).trim_end())
    }
}
