//! What docs/reliability.md says about the simulator is about this simulator.

use piton_core::planted::Bug;
use piton_testing::sim::{Rare, simulate};

const DOCUMENT: &str = include_str!("../../../docs/reliability.md");

/// The first column of the table behind this mark.
fn rows(mark: &str) -> Vec<&'static str> {
    let (_, behind) =
        DOCUMENT.split_once(&format!("<!-- {mark} -->\n")).expect("the mark is there");
    let (table, _) = behind.split_once("<!-- /").expect("so is its end");
    let row = |line: &'static str| line.trim_start_matches("| ").split(" |").next();
    table.lines().skip(2).filter_map(row).collect()
}

#[test]
fn the_document_lists_every_planted_bug() {
    let bugs: Vec<String> = Bug::ALL.iter().map(Bug::to_string).collect();
    assert_eq!(
        rows("planted bugs"),
        bugs,
        "run `cargo xtask sim --planted --write docs/reliability.md`"
    );
    assert!(!DOCUMENT.contains("NOT FOUND"));
}

#[test]
fn the_document_lists_every_rare_state() {
    let states: Vec<String> = Rare::ALL.iter().map(Rare::to_string).collect();
    assert_eq!(
        rows("rare states"),
        states,
        "run `cargo xtask sim --seeds 20000 --write docs/reliability.md`"
    );
}

#[test]
fn the_same_seed_gives_the_same_story() {
    for seed in [1, 2, 3] {
        let (first, second) = (simulate(seed, true), simulate(seed, true));
        assert_eq!(first.story, second.story);
        assert!(first.violation.is_none(), "{first}");
        assert!(first.story.len() > 20, "a story is told");
    }
}
