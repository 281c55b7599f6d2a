//! What a seed decides, and what can be left out of it to make the story of a violation shorter.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use super::faults::Weather;
use crate::runtime::SplitMix64;

macro_rules! parts {
    ($($(#[$doc:meta])* $part:ident = $word:literal),* $(,)?) => {
        /// A part of the simulated world that can be left out.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Part {
            $($(#[$doc])* $part),*
        }

        impl Part {
            /// All of them.
            pub const ALL: &'static [Part] = &[$(Part::$part),*];

            fn word(self) -> &'static str {
                match self {
                    $(Part::$part => $word),*
                }
            }
        }
    };
}

parts! {
    /// Processes are killed and stopped.
    Crashes = "no-crashes",
    /// Calls fail before they are applied.
    FailuresBefore = "no-failures-before",
    /// Calls fail after they were applied.
    FailuresAfter = "no-failures-after",
    /// Calls and hints take long.
    Delays = "no-delays",
    /// Hints are lost.
    LostHints = "no-lost-hints",
    /// Hints come twice.
    DoubledHints = "no-doubled-hints",
    /// Wall clocks differ.
    Skew = "no-skew",
    /// Waiting runs stay in memory.
    Parking = "no-parking",
    /// The clients' process runs workflows, too.
    ClientRunner = "no-client-runner",
    /// Some steps and handlers of hooks kill their process.
    Deadly = "no-deadly",
}

/// What a simulation does without.
///
/// Written as words with commas between them, so that a shortened story can be told again:
/// `no-crashes,runners=1,ops=2,skip=0.3.4,salt=7`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cuts {
    /// Parts that are left out.
    pub without: BTreeSet<Part>,
    /// At most this many runners.
    pub runners_max: Option<u32>,
    /// Programs are cut off behind this many operations.
    pub ops_max: Option<usize>,
    /// Actions of the clients that are left out, by number.
    pub skip: BTreeSet<u64>,
    /// Another order of what is left.
    pub salt: u64,
}

impl fmt::Display for Cuts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words: Vec<String> =
            self.without.iter().map(|part| part.word().to_owned()).collect();
        words.extend(self.runners_max.map(|max| format!("runners={max}")));
        words.extend(self.ops_max.map(|max| format!("ops={max}")));
        if !self.skip.is_empty() {
            let numbers: Vec<String> = self.skip.iter().map(u64::to_string).collect();
            words.push(format!("skip={}", numbers.join(".")));
        }
        if self.salt > 0 {
            words.push(format!("salt={}", self.salt));
        }
        f.write_str(&words.join(","))
    }
}

impl FromStr for Cuts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut cuts = Cuts::default();
        for word in text.split(',').filter(|word| !word.is_empty()) {
            cuts.add(word).ok_or_else(|| format!("{word:?} is not something that can be cut"))?;
        }
        Ok(cuts)
    }
}

impl Cuts {
    fn add(&mut self, word: &str) -> Option<()> {
        if let Some(part) = Part::ALL.iter().find(|part| part.word() == word) {
            self.without.insert(*part);
            return Some(());
        }
        let (name, value) = word.split_once('=')?;
        match name {
            "runners" => self.runners_max = Some(value.parse().ok()?),
            "ops" => self.ops_max = Some(value.parse().ok()?),
            "salt" => self.salt = value.parse().ok()?,
            "skip" => {
                let numbers: Result<_, _> = value.split('.').map(str::parse).collect();
                self.skip = numbers.ok()?;
            }
            _ => return None,
        }
        Some(())
    }

    fn has(&self, part: Part) -> bool {
        !self.without.contains(&part)
    }
}

/// What a seed decides about the world, before anything happens in it.
pub(super) struct Plan {
    pub(super) weather: Weather,
    pub(super) runners: u32,
    pub(super) client_runner: bool,
    pub(super) concurrency: usize,
    pub(super) parked_runs: usize,
    pub(super) skewed: bool,
    pub(super) actions: u64,
    pub(super) ops_max: usize,
    /// Some steps and handlers of hooks kill their process, whenever they are executed.
    pub(super) deadly: bool,
    skip: BTreeSet<u64>,
    seed: u64,
}

impl Plan {
    pub(super) fn new(seed: u64, cuts: &Cuts) -> Self {
        let mut random = SplitMix64::new(seed);
        let random = &mut random;
        let runners = 1 + random.below(3) as u32;
        let client_runner = random.below(3) == 0;
        let parked_runs = [0, 1, 1_024][random.below(3) as usize];
        let deadly = random.below(5) == 0;
        Self {
            weather: Weather::random(random, |part| cuts.has(part)),
            runners: runners.min(cuts.runners_max.unwrap_or(u32::MAX)),
            client_runner: client_runner && cuts.has(Part::ClientRunner),
            concurrency: [1, 3, 3, 16][random.below(4) as usize],
            parked_runs: if cuts.has(Part::Parking) { parked_runs } else { 0 },
            skewed: cuts.has(Part::Skew),
            actions: 4 + random.below(20),
            ops_max: cuts.ops_max.unwrap_or(usize::MAX),
            deadly: deadly && cuts.has(Part::Deadly),
            skip: cuts.skip.clone(),
            seed: random.next_u64(),
        }
    }

    /// The randomness of one action of the clients; `None` if it is left out. What one action does depends on no
    /// other, so that each can be left out.
    pub(super) fn action(&self, number: u64) -> Option<SplitMix64> {
        let seed = SplitMix64::new(self.seed ^ (number << 48)).next_u64();
        (!self.skip.contains(&number)).then(|| SplitMix64::new(seed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_read_back() {
        let cuts = Cuts {
            without: Part::ALL.iter().copied().collect(),
            runners_max: Some(1),
            ops_max: Some(2),
            skip: [0, 3, 17].into(),
            salt: 7,
        };
        assert_eq!(cuts.to_string().parse(), Ok(cuts));
        assert_eq!("".parse(), Ok(Cuts::default()));
        "no-such-thing".parse::<Cuts>().expect_err("there is no such part");
    }
}
