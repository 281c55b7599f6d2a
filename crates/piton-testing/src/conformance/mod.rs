//! The suite every store runs: each promise of `piton::store` as a case of its own.
//!
//! A store is judged by its answers alone. A case gets a [`Stage`], a fresh store on a virtual clock, and
//! tells a short story on it; no case sleeps, and none but those about hints listens to them.
//!
//! [`store_conformance!`](crate::store_conformance) makes one test of each case, so that a failure has a name;
//! [`differential`] finds what nobody thought of, by asking two stores the same questions.
//!
//! A store bug that is found in any other way becomes a case here first.

#[doc(hidden)]
pub mod boundary;
#[doc(hidden)]
pub mod claim;
#[doc(hidden)]
pub mod closing;
#[doc(hidden)]
pub mod create;
pub mod differential;
#[doc(hidden)]
pub mod events;
#[doc(hidden)]
pub mod hints;
#[doc(hidden)]
pub mod hooks;
#[doc(hidden)]
pub mod leases;
#[doc(hidden)]
pub mod lifecycle;
#[doc(hidden)]
pub mod mutations;
#[doc(hidden)]
pub mod reading;
mod rows;
mod stage;

pub use stage::Stage;

/// Plays one case on a fresh stage, on real threads so that simultaneous calls are simultaneous.
///
/// # Panics
///
/// If the store breaks the promise.
pub fn play<S: Into<Option<Stage>>>(open: impl AsyncFnOnce() -> S, case: impl AsyncFnOnce(Stage)) {
    threads().block_on(async {
        if let Some(stage) = open().await.into() {
            case(stage).await;
        }
    });
}

fn threads() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("threads can be started")
}

/// Makes a module of tests, one for each promise a store must keep.
///
/// The second argument names an `async fn() -> Stage` beside the call, which opens a fresh, empty store; or one that
/// returns an `Option<Stage>`, to skip the tests where there is no such store.
///
/// ```
/// use piton::store::MemoryStore;
/// use piton_testing::{Stage, VirtualRuntime};
///
/// async fn open_memory() -> Stage {
///     let clock = VirtualRuntime::new(1);
///     Stage::new(MemoryStore::new(clock.clone()), clock)
/// }
///
/// piton_testing::store_conformance!(memory, open_memory);
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! store_conformance {
    ($store:ident, $open:ident) => {
        mod $store {
            $crate::store_conformance!(@topic $open create:
                a_new_instance_reads_back_as_it_was_created,
                a_new_instance_is_due_at_once,
                params_keep_every_byte,
                an_id_that_exists_is_refused,
                the_same_id_under_two_workflows_is_two_instances,
                a_refused_request_creates_none_of_its_instances,
                an_id_twice_in_a_refusing_request_is_refused,
                a_batch_keeps_its_order_and_leaves_out_what_exists,
                duplicates_inside_a_batch_collapse_to_the_first,
                an_empty_batch_creates_nothing,
                eight_simultaneous_creates_of_one_id_make_one_instance,
                simultaneous_batches_create_each_id_once,
                a_leased_create_belongs_to_its_creator_at_once,
                a_leased_create_whose_creator_died_is_taken_over,
            );
            $crate::store_conformance!(@topic $open claim:
                a_second_claim_of_a_leased_task_gets_nothing,
                a_claim_hands_over_what_a_pass_needs,
                every_claim_moves_the_epoch_by_one,
                started_at_is_set_by_the_first_claim_and_stays,
                a_task_is_claimed_at_its_moment_and_not_before,
                a_claim_takes_no_more_than_wanted_and_says_that_there_is_more,
                a_claim_says_when_the_next_task_falls_due,
                the_next_due_moment_counts_pending_tasks_and_leases,
                the_next_due_moment_ignores_what_nobody_can_claim,
                the_oldest_goes_first_over_all_workflows,
                instances_created_at_once_are_claimed_in_their_order,
                resuming_work_goes_before_new_work,
                resumed_and_retried_work_is_resuming_work,
                a_lease_that_ran_out_is_resuming_work,
                new_work_that_waited_too_long_gets_a_quarter_of_every_claim,
                new_work_that_has_not_waited_long_waits_for_resuming_work,
                a_thousand_unregistered_tasks_delay_nobody,
                a_thousand_paused_tasks_delay_nobody,
                a_thousand_held_leases_delay_nobody,
                twenty_simultaneous_claims_of_one_task_give_it_to_one,
                simultaneous_claims_share_the_work_and_strand_nothing,
                a_task_claimed_too_often_without_progress_is_quarantined,
                a_quarantined_instance_can_be_restarted,
                suspects_are_claimed_one_at_a_time_by_those_who_ask_for_one,
                one_instance_is_claimed_and_no_other,
                one_instance_that_is_not_due_is_not_claimed,
                one_instance_that_is_a_suspect_is_claimed_by_those_who_ask_for_one,
                progress_clears_the_count_of_claims,
                the_rules_of_a_claim_are_the_callers,
                tasks_that_are_quarantined_or_held_do_not_delay_others,
                a_requested_pause_whose_runner_died_takes_effect_on_the_next_claim,
                a_claim_tells_its_story,
            );
            $crate::store_conformance!(@topic $open leases:
                a_lease_can_be_taken_over_at_its_end_and_not_before,
                a_lease_that_ran_out_unnoticed_still_commits,
                renewal_keeps_others_away,
                renewal_lasts_as_long_as_was_asked_for,
                a_lease_that_ran_out_can_be_renewed_if_nobody_took_it,
                renewal_leaves_out_what_is_lost,
                renewal_tells_of_a_requested_pause,
                a_released_run_can_be_claimed_at_once,
                releasing_does_not_count_against_the_run,
                releasing_what_is_no_longer_held_is_ignored,
                releasing_many_keys_releases_those_that_are_held,
                a_run_released_while_a_pause_is_requested_is_paused,
                a_clock_set_back_neither_doubles_nor_unfires,
                after_the_clock_was_set_back_new_work_starts_and_waits_end,
                a_clock_set_forward_fires_timers_and_loses_nothing,
            );
            $crate::store_conformance!(@topic $open boundary:
                a_committed_step_is_there,
                steps_are_loaded_in_order_of_position,
                every_field_of_a_step_survives,
                a_retried_step_keeps_its_place_and_gets_its_outcome,
                an_unchanged_wait_that_settles_is_written,
                a_suspended_run_waits_for_its_moment,
                a_run_completes_with_its_output,
                a_run_fails_with_its_error,
                the_last_step_and_the_end_share_one_commit,
                a_stale_epoch_is_fenced,
                a_stale_run_is_fenced,
                an_ended_run_is_fenced,
                a_suspended_run_is_fenced,
                a_released_run_is_fenced,
                a_paused_run_is_fenced,
                a_quarantined_run_is_fenced,
                an_instance_that_never_was_is_fenced,
                a_fenced_runner_never_hinders_the_holder,
                neither_event_nor_pause_nor_renewal_moves_the_epoch,
                no_retry_is_due_before_its_moment_whatever_happens,
            );
            $crate::store_conformance!(@topic $open events:
                an_event_reads_back_as_it_was_sent,
                an_event_sent_before_the_first_pass_is_found_by_the_wait,
                an_event_sent_while_a_body_runs_is_found_by_the_wait,
                an_event_for_a_wait_that_was_registered_earlier_in_the_pass_is_found,
                an_event_sent_while_paused_is_kept_for_after_the_resume,
                an_event_wakes_the_run_that_waits_for_it_at_once,
                a_run_that_an_event_wakes_is_the_claimants_at_once,
                a_claimant_gets_nothing_but_what_the_event_wakes,
                an_event_of_another_type_wakes_nobody,
                an_event_for_a_wait_that_is_settled_wakes_nobody,
                an_event_is_taken_by_one_wait_which_is_recorded_with_it,
                events_of_a_type_are_taken_in_the_order_of_arrival,
                a_wait_leaves_events_of_other_types_alone,
                one_event_does_not_feed_two_waits,
                an_event_counts_exactly_if_it_arrived_by_the_deadline,
                a_wait_times_out_at_its_deadline_and_not_before,
                a_timeout_cancels_the_suspension,
                an_open_wait_does_not_cancel_the_suspension,
                a_late_event_stays_for_the_next_wait,
                a_settled_wait_never_changes,
                a_missing_instance_takes_no_events,
                an_ended_instance_takes_no_events_and_stores_nothing,
                events_of_one_run_are_never_seen_by_the_next,
                a_wait_of_the_old_run_does_not_wake_the_new_one,
                a_repeated_event_is_stored_once_and_answered_like_the_first,
                a_repeat_is_known_whatever_became_of_the_instance,
                idempotency_keys_are_the_instances_own,
                eight_simultaneous_repeats_store_one_event,
                events_sent_at_once_are_all_kept_in_one_order,
                an_event_that_races_a_suspension_is_never_lost,
            );
            $crate::store_conformance!(@topic $open lifecycle:
                an_instance_paused_before_its_first_pass_does_not_run,
                a_waiting_instance_is_paused_at_once,
                a_running_instance_is_paused_at_its_next_boundary_which_is_kept,
                a_requested_pause_lets_running_bodies_finish,
                a_run_that_suspends_while_a_pause_is_requested_is_paused,
                a_wait_that_settles_while_a_pause_is_requested_keeps_its_outcome,
                a_run_that_ends_while_a_pause_is_requested_ends,
                an_instance_whose_runner_died_is_paused_at_once,
                pausing_twice_changes_nothing,
                resuming_what_is_not_paused_changes_nothing,
                resuming_takes_back_a_pause_that_was_only_requested,
                a_resumed_run_is_due_at_once_with_a_new_epoch,
                a_wake_that_fell_due_while_paused_takes_effect_after_the_resume,
                terminating_ends_a_live_instance_at_once,
                terminating_forgets_a_requested_pause,
                an_ended_instance_can_be_neither_paused_nor_terminated,
                a_missing_instance_cannot_be_steered,
                restarting_works_from_each_of_the_six_statuses,
                restarting_tells_how_the_run_before_stood,
                old_runs_stay_readable_and_never_change,
                a_requested_pause_does_not_outlive_a_restart,
                an_old_wake_does_not_end_a_sleep_of_the_new_run,
                simultaneous_restarts_leave_one_live_run,
                of_simultaneous_terminates_one_succeeds,
                a_terminate_that_races_the_last_boundary_ends_the_run_once,
                completed_at_is_there_exactly_on_ended_instances,
            );
            $crate::store_conformance!(@topic $open reading:
                an_instance_that_is_not_there_is_none,
                a_run_that_is_not_there_has_no_rows,
                updated_at_is_the_newest_of_the_instance_and_its_steps,
                an_instance_shows_the_step_that_will_wake_first,
                instances_are_listed_newest_first,
                a_listed_instance_is_the_instance,
                instances_can_be_listed_by_status,
                instances_can_be_listed_by_the_time_they_were_created,
                an_instance_created_after_the_clock_was_set_back_is_listed_where_its_time_is,
                pages_of_instances_lose_and_repeat_nothing_while_others_are_created,
                pages_forwards_lose_and_repeat_nothing_while_rows_are_added,
                pages_backwards_lose_and_repeat_nothing_while_rows_are_added,
                pages_show_one_run_of_one_instance,
                log_lines_keep_every_field,
                log_lines_are_in_order_of_insertion_whatever_their_time,
                a_boundary_tells_the_runners_lines_before_its_own,
                logs_can_be_filtered_by_level_and_category,
                lines_can_be_added_to_a_live_run_that_is_not_held,
                system_lines_have_ids_and_moments,
                ended_names_those_that_have_ended,
                the_backlog_counts_the_live_tasks_of_every_unknown_workflow,
            );
            $crate::store_conformance!(@topic $open mutations:
                a_child_is_created_with_the_step_that_creates_it,
                an_event_is_sent_with_the_step_that_sends_it,
                mutations_run_in_their_order,
                a_refused_mutation_rolls_everything_back,
                a_refused_boundary_keeps_no_run_from_being_claimed,
                a_wait_beside_a_transaction_is_registered_and_settled_by_the_next_boundary,
                the_last_boundary_of_a_run_may_mutate,
                a_repeated_event_in_a_boundary_is_stored_once,
                a_fenced_boundary_mutates_nothing,
            );
            $crate::store_conformance!(@topic $open hints:
                work_that_becomes_due_is_told,
                the_moment_of_a_suspended_run_is_told,
                a_wake_by_an_event_is_told,
                a_resume_is_told,
                what_a_boundary_creates_and_wakes_is_told,
                whoever_advances_a_run_is_told_what_happens_to_it,
                the_end_of_a_run_is_told_however_it_ends,
                every_observer_is_told_until_it_is_dropped,
            );
            $crate::store_conformance!(@topic $open hooks:
                every_field_of_a_hook_survives,
                hooks_come_and_go_with_their_boundary,
                hooks_come_with_the_create_and_the_event_they_were_given_to,
                due_hooks_are_taken_oldest_first_and_not_before_their_time,
                a_taken_hook_belongs_to_one_until_its_lease_ends,
                a_renewed_lease_lasts_and_a_lost_one_cannot_be_renewed,
                failures_are_retried_with_their_delays_and_then_kept,
                a_hook_that_is_handed_back_is_due_at_once_and_keeps_its_policy,
                a_suspect_that_is_handed_back_stays_a_suspect,
                a_hook_that_keeps_killing_its_process_is_given_up,
                of_hooks_that_may_have_killed_their_process_one_is_taken_at_a_time,
                what_was_lost_costs_no_attempt_of_the_policy,
                a_retry_by_hand_makes_a_failed_hook_due_again,
                work_is_settled_renewed_and_taken_in_one_go,
                old_completed_hooks_are_removed_and_no_others,
                simultaneous_processors_share_the_hooks,
                hooks_are_taken_whole_while_others_are_triggered,
                hooks_are_listed_newest_first_and_by_what_was_asked_for,
                hooks_that_become_due_are_told,
                what_the_engine_tells_is_stored_once_and_with_its_cause,
            );
            $crate::store_conformance!(@topic $open closing:
                a_closed_store_answers_nothing,
                a_closed_store_answers_nothing_about_hooks,
                what_was_asked_before_the_close_is_answered,
            );
        }
    };
    (@topic $open:ident $topic:ident: $($case:ident),* $(,)?) => {
        mod $topic {
            $(
                #[test]
                fn $case() {
                    $crate::conformance::play(super::super::$open, $crate::conformance::$topic::$case);
                }
            )*
        }
    };
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_case_is_listed() {
        let listed = include_str!("mod.rs");
        let topics = [
            ("create", include_str!("create.rs")),
            ("claim", include_str!("claim.rs")),
            ("leases", include_str!("leases.rs")),
            ("boundary", include_str!("boundary.rs")),
            ("events", include_str!("events.rs")),
            ("lifecycle", include_str!("lifecycle.rs")),
            ("reading", include_str!("reading.rs")),
            ("mutations", include_str!("mutations.rs")),
            ("hints", include_str!("hints.rs")),
            ("hooks", include_str!("hooks.rs")),
            ("closing", include_str!("closing.rs")),
        ];
        for (topic, source) in topics {
            let (_, list) =
                listed.split_once(&format!("@topic $open {topic}:")).expect("the topic is listed");
            let (list, _) = list.split_once(");").expect("the list ends");
            for line in source.lines() {
                let Some(rest) = line.strip_prefix("pub async fn ") else {
                    continue;
                };
                let (case, _) = rest.split_once('(').expect("it has a stage");
                let entry = format!(" {case},\n");
                assert!(list.contains(&entry), "{topic}::{case} is not run");
            }
        }
    }
}
