//! Conformance to the Agent Client Protocol: tables of cases, each run against the real `pixir acp`.

mod auth;
mod cancel;
mod capabilities;
mod case;
mod commands;
mod content;
mod errors;
mod exit;
mod files;
mod fuzz;
mod initialize;
mod lifecycle;
mod lines;
mod listing;
mod malformed;
mod options;
mod order;
mod permission;
mod replay;
mod schema;
pub mod scripted_model;
mod tools;
mod updates;

use crate::support::torture;
use case::ConformanceTopic;

/// Every table of cases.
const TOPICS: &[&ConformanceTopic] = &[
    &lines::TOPIC,
    &initialize::TOPIC,
    &auth::TOPIC,
    &lifecycle::TOPIC,
    &content::TOPIC,
    &updates::TOPIC,
    &tools::TOPIC,
    &files::TOPIC,
    &permission::TOPIC,
    &options::TOPIC,
    &commands::TOPIC,
    &cancel::TOPIC,
    &replay::TOPIC,
    &listing::TOPIC,
    &order::TOPIC,
    &errors::TOPIC,
    &exit::TOPIC,
];

/// Defines one test per table, so that tables run in parallel and fail by name.
macro_rules! conformance_tests {
    ($($name:ident),*) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            $name::TOPIC.run_cases().await;
        })*

        #[test]
        fn every_topic_has_a_test() {
            let played = [$($name::TOPIC.name),*];
            let known: Vec<&str> = TOPICS.iter().map(|topic| topic.name).collect();
            assert_eq!(known, played);
        }
    };
}

conformance_tests!(
    lines, initialize, auth, lifecycle, content, updates, tools, files, permission, options,
    commands, cancel, replay, listing, order, errors, exit
);

#[test]
fn there_are_enough_cases_and_no_two_of_a_name() {
    let mut names: Vec<(&str, &str)> = TOPICS
        .iter()
        .flat_map(|topic| topic.cases.iter().map(|case| (topic.name, case.name)))
        .collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count, "two cases have one name");
    assert!(count >= 150, "{count} cases");
    torture::print_summary(&format!("acp: {count} cases in {} tables", TOPICS.len()));
}
