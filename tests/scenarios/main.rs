//! Scenarios on real clusters: what users are promised, told as sentences.
//!
//! There are two sets of them, each with clusters of its own, side by side; within a set they run one after another, in this order: the
//! last ones take Liqo apart. `cargo test -p liqo-tests -- jobs` runs those whose name holds `jobs`, and starts only the clusters that
//! they need; `LIQO_TEST_KEEP=1` leaves the clusters up.
//!
//! ```text
//!   set test:   rome, turin, milan   install, pods, jobs, ...  ──┐
//!                                                                ├──> one report, in the order of the list
//!   set test2:  rome, turin, milan   sharing, policies, ...    ──┘
//! ```
//! In the first set milan enforces `NetworkPolicies`. In the second one turin has two nodes, both of which are gateways, and the clusters have
//! IPv6 beside IPv4.

mod api_access;
mod approval;
mod doctor;
mod dual_stack;
mod enforcement;
mod exposure;
mod install;
mod isolation;
mod jobs;
mod lending;
mod matrix;
mod network;
mod network_only;
mod network_policies;
mod offers;
mod offloading;
mod outages;
mod peering;
mod plugins;
mod pods;
mod policies;
mod pools;
mod puppet;
mod services;
mod settled;
mod sharing;
mod through_tunnel;
mod walls;

use std::{future::Future, pin::Pin, process::ExitCode, sync::Arc, time::Instant};

use anyhow::{Context as _, Result};
use libtest_mimic::{Arguments, Trial};
use liqo_tests::{Clusters, World};
use tokio::{
    runtime::Runtime,
    sync::{Mutex, oneshot},
};

type Scenario = fn(Arc<World>) -> Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// The scenarios of a module, each under the name of its function.
macro_rules! scenarios {
    ($($module:ident: $($name:ident),+ $(,)?);+ $(;)?) => {
        vec![$($((concat!(stringify!($module), "::", stringify!($name)), (|world| Box::pin($module::$name(world))) as Scenario)),+),+]
    };
}

/// The first set. Its clusters are gone from Liqo's view at the end.
fn first() -> Vec<(&'static str, Scenario)> {
    scenarios! {
        install:
            a_manager_runs_with_no_more_rights_than_it_needs,
            installing_again_changes_nothing;
        pods:
            a_deployments_replicas_run_at_the_peer_and_are_ready_at_home,
            logs_follow_tail_previous_and_since_answer,
            exec_with_a_terminal_works,
            a_deleted_pods_grace_period_is_honoured,
            a_stateful_set_keeps_its_names,
            rolling_updates_and_scaling_look_as_they_do_locally,
            init_containers_sidecars_and_probes_work,
            a_crashing_container_is_restarted_and_counted_at_home,
            label_changes_travel,
            config_maps_and_secrets_that_a_pod_names_travel,
            a_pod_elsewhere_keeps_its_size_and_says_so;
        jobs:
            a_finished_job_never_runs_again,
            a_job_whose_remote_pod_was_removed_while_managers_were_down_does_not_run_twice;
        offloading:
            a_namespace_offloading_of_the_documents_applies,
            a_cluster_selector_limits_where_pods_go,
            a_local_namespace_exists_at_the_peer_but_its_pods_stay_home,
            without_a_network_a_service_never_sends_a_packet_to_a_wrong_pod,
            a_namespace_that_exists_at_the_provider_is_not_taken_over,
            pods_that_may_not_travel_say_why,
            unoffloading_brings_pods_home_and_removes_the_twin,
            a_daemon_set_has_no_pod_on_a_virtual_node;
        // Before gateways get new keys: peers are told of the former ones for five minutes, and that they end is written.
        settled:
            a_settled_system_writes_nothing_but_leases;
        network:
            two_clusters_with_the_same_ranges_come_to_terms,
            pods_reach_each_other_both_ways_and_see_who_calls,
            a_service_spans_both_clusters_by_its_usual_name,
            what_is_not_offloaded_stays_closed,
            connections_survive_a_restart_of_the_fabric_and_of_the_managers,
            how_the_way_to_a_peer_is_stands_in_the_status,
            where_udp_does_not_pass_tls_takes_over_by_itself_and_udp_when_it_passes_again,
            gateways_get_new_keys_and_nothing_is_lost,
            a_network_that_is_not_wanted_ends_on_both_sides_and_comes_back;
        api_access:
            a_pod_elsewhere_uses_the_api_server_of_its_home_and_nothing_else_there,
            a_pod_that_insists_on_its_api_server_waits_until_there_is_a_way;
        doctor:
            the_doctor_finds_no_fault_in_clusters_that_are_well,
            the_doctor_names_a_manager_that_does_not_run,
            the_doctor_names_a_right_that_was_taken_away,
            the_doctor_names_the_direction_in_which_packets_are_lost;
        network_only:
            a_peering_for_the_network_alone_takes_resources_and_gives_them_back;
        walls:
            packets_find_what_the_policies_say;
        approval:
            a_consumer_waits_until_a_person_approves_it,
            a_consumer_that_is_refused_is_told,
            a_consumer_that_nobody_approves_is_forgotten;
        peering:
            a_wrong_token_is_refused,
            a_replayed_request_is_refused,
            a_foreign_key_cannot_claim_a_known_id,
            two_way_peering_works,
            a_hostile_node_name_or_label_does_nothing;
        outages:
            the_home_clusters_controller_manager_starts_beside_virtual_nodes,
            a_short_outage_moves_no_pod,
            a_long_outage_shows_on_node_and_pods_and_heals,
            unpeering_from_a_dead_peer_ends_and_leaves_nothing;
        install:
            uninstalling_leaves_nothing;
    }
}

/// The second set.
fn second() -> Vec<(&'static str, Scenario)> {
    scenarios! {
        dual_stack:
            ranges_of_both_families_are_found_and_agreed_on,
            pods_and_services_have_addresses_of_both_families_on_both_sides;
        matrix:
            every_way_between_a_consumer_and_its_provider_works,
            a_gateway_that_is_lost_is_replaced_and_connections_go_on,
            leaves_reach_each_other_through_a_hub_only_where_it_says_so;
        services:
            services_travel_with_endpoints_as_the_provider_sees_them,
            a_stateful_set_that_spans_clusters_has_its_names_in_both,
            a_consumer_puts_no_endpoints_where_it_has_none;
        exposure:
            ingresses_and_load_balancers_have_the_classes_that_the_provider_allows;
        network_policies:
            policies_apply_at_the_provider_and_follow_the_pods_that_are_not_there,
            a_consumer_opens_nothing_that_is_the_providers;
        through_tunnel:
            a_provider_of_which_only_the_tunnels_port_is_open_is_borrowed_from;
        sharing:
            the_offer_follows_the_free_capacity_and_the_node_follows_the_offer,
            pods_beyond_the_offer_are_refused_with_a_reason,
            a_request_bounds_the_offer,
            the_ledgers_metrics_say_what_is_offered_and_what_is_used;
        policies:
            two_peers_with_different_policies_get_different_offers,
            what_is_used_beyond_a_new_cap_is_reclaimed_after_the_notice,
            a_plugins_amounts_arrive_at_the_node_and_follow_its_arguments,
            a_plugin_offers_what_labelled_nodes_have_free;
        plugins:
            the_manifests_of_every_plugin_and_of_a_new_one_bring_up_a_ready_pod,
            a_plugin_that_lies_hangs_or_dies_is_named_and_its_last_offer_stays,
            a_plugin_that_floods_or_hangs_up_does_not_keep_the_manager_busy;
        offers:
            an_offer_waits_for_a_person_who_accepts_refuses_and_forgets_it;
        pools:
            each_group_of_nodes_is_a_node_and_pods_stay_on_theirs;
        lending:
            when_a_node_dies_the_offer_shrinks_and_the_youngest_pod_beyond_it_ends,
            two_clusters_lend_each_other_what_the_other_lacks,
            a_pool_that_is_taken_back_is_drained_within_disruption_budgets;
        enforcement:
            the_pod_security_of_a_consumers_pods_follows_the_policy,
            a_consumers_pods_get_the_priority_and_only_the_volumes_and_objects_of_the_policy,
            a_policy_cannot_let_pods_onto_the_providers_virtual_nodes,
            a_pod_says_which_object_it_names_the_provider_does_not_have,
            limits_are_charged_where_the_policy_says_so;
        isolation:
            two_consumers_cannot_see_or_touch_each_other;
    }
}

/// The clusters of the two sets.
const SETS: [Clusters; 2] = [
    Clusters { instance: "test", nodes_of_turin: 1, dual_stack: false, network_policies: true },
    Clusters { instance: "test2", nodes_of_turin: 2, dual_stack: true, network_policies: false },
];

/// What became of a scenario.
type Outcome = Result<(), String>;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // The report waits for one after another; what runs side by side is decided here.
    arguments.test_threads = Some(1);
    let wanted = |name: &str| {
        let named = |filter: &String| if arguments.exact { name == filter } else { name.contains(filter.as_str()) };
        !arguments.list && !arguments.ignored && arguments.filter.as_ref().is_none_or(named) && !arguments.skip.iter().any(named)
    };
    let runtime = match Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error.into()),
    };
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        eprintln!("a TLS provider was installed already");
    }
    let (mut trials, mut runs) = (Vec::new(), Vec::new());
    // One after the other: what the first had to build, the second finds.
    let building = Arc::new(Mutex::new(()));
    for (clusters, scenarios) in SETS.into_iter().zip([first(), second()]) {
        let mut tasks = Vec::new();
        for (name, scenario) in scenarios {
            let (tell, outcome) = oneshot::channel::<Outcome>();
            trials.push(Trial::test(name, move || {
                outcome.blocking_recv().unwrap_or_else(|_| Err("the clusters were not started".to_owned())).map_err(Into::into)
            }));
            if wanted(name) {
                tasks.push((name, scenario, tell));
            }
        }
        if !tasks.is_empty() {
            runs.push(runtime.spawn(run(clusters, tasks, building.clone())));
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    for run in runs {
        match runtime.block_on(run) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return fail(&error),
            Err(error) => return fail(&error.into()),
        }
    }
    conclusion.exit_code()
}

/// Starts the clusters of a set, and runs its scenarios one after another.
async fn run(
    clusters: Clusters,
    tasks: Vec<(&'static str, Scenario, oneshot::Sender<Outcome>)>,
    building: Arc<Mutex<()>>,
) -> Result<()> {
    let world = {
        let _alone = building.lock().await;
        Arc::new(World::build(clusters).await.with_context(|| format!("the clusters of set {}", clusters.instance))?)
    };
    let mut has_failed = false;
    for (name, scenario, tell) in tasks {
        let begun = Instant::now();
        let outcome = match tokio::spawn(scenario(world.clone())).await {
            Ok(outcome) => outcome.map_err(|error| format!("{error:#}")),
            Err(panic) => Err(panic.to_string()),
        };
        has_failed |= outcome.is_err();
        if let Err(error) = &outcome {
            eprintln!("{name}: {error}");
        }
        eprintln!("{name}: {} after {} s", if outcome.is_ok() { "done" } else { "failed" }, begun.elapsed().as_secs());
        // Nobody listens where the report has ended.
        let _ = tell.send(outcome);
    }
    world.end(has_failed).await
}

fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("the scenarios cannot run: {error:#}");
    ExitCode::FAILURE
}
