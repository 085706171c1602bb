//! Scenarios on real clusters: each one is a sentence that Liqo promises to its users.
//!
//! There are three sets, each with its own clusters, which run at the same time (or one after
//! another, with `LIQO_TEST_SETS=1`). Each set has these lists:
//!
//! ```text
//!   parallel     run several at a time: they change nothing that another scenario sees
//!   with_turin   run meanwhile, one after another: they change turin, and its peering with milan
//!   alone        run then, one after another: they stop managers, cut clusters off, change offers, or count all writes
//!   groups       run then, like `alone`, in whichever set has time first
//!   last         run at the end: what they change stays
//! ```
//! `cargo test --test scenarios -- jobs` runs the scenarios whose names contain `jobs`, and starts
//! only the clusters that they need. `-- attack` runs all scenarios that docs/reference/attacks.md
//! names, and prints the table there with their outcomes. `LIQO_TEST_KEEP=1` leaves the clusters
//! up.
#![allow(
    clippy::too_many_lines,
    reason = "a scenario is told from its beginning to its end"
)]

mod api_access;
mod approval;
mod as_at_home;
mod attacks;
mod broker;
mod budgets;
mod calls;
mod chains;
mod colleague;
mod command_line;
mod conformance;
mod contracts;
mod credentials;
mod direct_path;
mod discovery;
mod disputes;
mod doctor;
mod drains;
mod dual_stack;
mod enforced_network_policies;
mod enforcement;
mod events;
mod exposure;
mod hostile_pods;
mod install;
mod isolation;
mod jobs;
mod kept_addresses;
mod lending;
mod matrix;
mod metering;
mod metrics;
mod names;
mod network;
mod network_only;
mod network_policies;
mod offers;
mod offloading;
mod outages;
mod peering;
mod placement;
mod plugins;
mod pods;
mod policies;
mod pools;
mod prices;
mod printed_commands;
mod runner;
mod scripted_plugin;
mod services;
mod settled;
mod sharing;
mod takeover;
mod tethering;
mod through_tunnel;
mod two_providers;

use std::process::ExitCode;

use liqo_tests::Clusters;

use crate::runner::{Scenario, Set};

/// The scenarios of a module, each under the name of its function.
macro_rules! scenarios {
    ($($module:ident: $($name:ident),+ $(,)?);+ $(;)?) => {
        vec![$($(Scenario::new(
            concat!(stringify!($module), "::", stringify!($name)),
            |world| Box::pin($module::$name(world)),
        )),+),+]
    };
}

/// Pods and policies for them, and that a settled system writes nothing. Rome has another domain.
/// Towards the end milan enforces `NetworkPolicies`, and then Liqo is uninstalled.
fn pods_and_policies() -> Set {
    Set {
        clusters: Clusters {
            instance: "test",
            nodes_of_turin: 1,
            network_policies: true,
            romes_domain: Some(names::ROMES_DOMAIN),
            // Groups run in either set, and one of them needs it.
            turins_pod_octet: Some(kept_addresses::TURINS_POD_OCTET),
            ..Clusters::default()
        },
        parallel: scenarios! {
            // It closes the API server to all pods for a while. No other scenario in this list has
            // pods that use it.
            api_access:
                a_remote_pod_uses_its_home_api_server_and_nothing_else_there;
            network:
                pods_that_are_not_offloaded_stay_closed,
                two_clusters_with_the_same_ranges_agree_on_a_network,
                pods_reach_each_other_both_ways_and_see_who_calls,
                the_status_shows_latency_and_loss_of_the_path_to_a_peer;
            calls:
                no_call_is_lost_while_pods_are_replaced_fail_probes_end_or_leave_their_service;
            names:
                a_remote_pod_resolves_names_as_at_home;
            install:
                a_manager_has_no_more_rights_than_it_needs;
            attacks:
                a_stolen_manager_touches_neither_pods_of_the_system_nor_certificates_of_others,
                what_a_consumers_token_must_not_do,
                what_the_tokens_of_a_manager_and_of_a_node_must_not_do,
                a_stolen_token_of_a_node_changes_no_report_of_another_gateway;
            // Its unknown clusters have their own keys, and the one that is accepted requests no
            // resources.
            peering:
                a_wrong_token_is_refused;
        }
        .into_iter()
        .chain(pods_of_an_offloaded_namespace())
        .chain(offloaded_namespaces())
        .collect(),
        with_turin: scenarios! {
            // Its policies apply only to turin and milan.
            network_only:
                a_peering_for_only_the_network_can_add_and_remove_resources;
            attacks:
                a_refused_consumer_is_out_within_seconds;
        },
        alone: scenarios! {
            // It applies the webhook's configuration again.
            install:
                installing_again_changes_nothing;
            // It ends the network of rome and milan.
            offloading:
                without_a_network_a_service_never_sends_packets_to_wrong_pods;
            // It cordons nodes of rome.
            command_line:
                pods_move_away_from_a_cluster_and_it_takes_pods_again;
            // They change the policies for rome's pods.
            enforcement:
                the_pod_security_of_a_consumers_pods_follows_the_policy,
                a_consumers_pods_get_only_the_priority_volumes_and_objects_of_the_policy,
                a_policy_cannot_allow_pods_on_the_providers_virtual_nodes,
                limits_are_charged_if_the_policy_says_so,
                a_namespace_has_its_own_name_at_a_provider_whose_policy_allows_that;
            hostile_pods:
                images_annotations_and_raw_sockets_follow_the_policy;
            // They stop managers, or keep the auth endpoint busy.
            attacks:
                a_consumer_cannot_exhaust_the_memory_of_its_provider,
                nobody_keeps_an_honest_consumer_from_renewing;
            pods:
                a_command_and_a_log_that_a_restart_of_the_manager_cuts_do_not_look_complete;
        }
        .into_iter()
        .chain(settled())
        .chain(network_and_nodes())
        .chain(attacks_at_full_speed())
        .collect(),
        groups: Vec::new(),
        last: enforced_network_policies()
            .into_iter()
            .chain(doctor_and_the_end())
            .collect(),
    }
}

/// Beside others an API server would need so long to start again that its peers take it for dead,
/// which they write down. The long periods in which nothing is written need no machine of their
/// own.
fn settled() -> Vec<Scenario> {
    let all = scenarios! {
        settled:
            a_settled_system_writes_only_leases;
    };
    all.into_iter().map(Scenario::with_own_share).collect()
}

/// What counts exactly once, although managers stop.
fn jobs_and_metering() -> Vec<Scenario> {
    scenarios! {
        jobs:
            a_finished_job_never_runs_again;
        metering:
            both_sides_count_the_same_seconds_over_restarts_and_sign_receipts;
        // It ends the peering of rome and milan, and peers them again.
        disputes:
            a_cheat_is_named_an_absent_consumer_signs_later_and_no_second_counts_twice;
    }
}

/// Milan lends to rome what it borrows from turin.
fn behind_a_broker() -> Vec<Scenario> {
    let all = scenarios! {
        broker:
            a_deployment_runs_at_a_provider_of_the_provider,
            a_pod_behind_a_broker_and_its_home_reach_each_other_and_see_who_calls,
            a_pod_behind_a_broker_reads_its_configuration_and_what_it_is_at_home,
            nobody_is_offered_what_comes_from_itself;
        jobs:
            a_job_outlives_a_drain_at_its_provider_and_behind_a_broker;
        drains:
            a_drain_waits_for_the_budget_of_home_also_behind_a_broker;
        direct_path:
            packets_take_the_direct_path_while_both_ends_answer_and_else_pass_through_the_broker;
        kept_addresses:
            a_pod_behind_a_broker_has_one_address_also_on_the_direct_path;
        // They peer rome with turin, cut milan and turin off, and end the peering of rome and
        // milan.
        chains:
            two_ways_to_one_provider_share_what_it_has,
            pods_outlive_their_broker_show_a_dead_provider_and_end_with_their_customer;
    };
    all.into_iter()
        .map(|scenario| scenario.on(&broker::FIXTURE))
        .collect()
}

/// Milan becomes a broker and ends it, by its plugin and by commands.
fn becoming_a_broker() -> Vec<Scenario> {
    scenarios! {
        broker:
            a_broker_by_its_plugin_lends_the_sum_and_its_catalog_needs_a_token,
            commands_make_a_broker_show_it_and_end_it;
    }
}

/// Rome is tethered to milan, which borrows from rome. They cut milan off, and turin peers with
/// rome.
fn tethered() -> Vec<Scenario> {
    let all = scenarios! {
        tethering:
            a_laptop_hands_itself_over_to_the_office_and_gets_control_back,
            a_short_cut_changes_nothing_and_a_long_one_brings_control_back,
            a_power_cut_in_any_state_ends_in_the_state_that_was_wanted,
            a_refusal_shows_its_reason_and_leaves_nothing;
    };
    all.into_iter()
        .map(|scenario| scenario.on(&tethering::FIXTURE))
        .collect()
}

/// They change the policies for rome's pods, and stop managers.
fn contracts() -> Vec<Scenario> {
    scenarios! {
        contracts:
            both_sign_change_and_end_a_contract,
            stored_contracts_are_verified_and_a_provider_that_changes_a_term_is_found_out;
        budgets:
            a_spent_budget_stops_new_pods_or_brings_running_ones_home;
        // It changes the policies `default` of rome and milan.
        printed_commands:
            the_commands_of_contracts_and_prices_work_and_a_guarantee_that_ends_early_is_a_breach;
    }
}

/// Their figures mean something only if nothing else runs, and they would make other scenarios
/// late. They stop turin's manager, and peer turin with milan or rome with turin.
fn attacks_at_full_speed() -> Vec<Scenario> {
    let all = scenarios! {
        attacks:
            an_honest_consumer_keeps_its_pace_beside_a_hostile_one,
            an_honest_provider_is_used_undisturbed_beside_a_hostile_one;
    };
    all.into_iter().map(Scenario::with_whole_machine).collect()
}

/// What users do with remote pods.
fn pods_of_an_offloaded_namespace() -> Vec<Scenario> {
    scenarios! {
        pods:
            a_deployments_replicas_run_at_the_peer_and_are_ready_at_home,
            a_deleted_pods_grace_period_is_honoured,
            a_deletion_takes_four_writes,
            an_ephemeral_container_runs_at_the_peer_or_shows_why_not,
            a_pod_that_was_deleted_at_the_peer_shows_a_restart,
            config_maps_and_secrets_of_a_pod_are_reflected,
            a_remote_pod_is_resized_in_place_within_the_offer;
    }
}

/// Changes of the network and of virtual nodes.
fn network_and_nodes() -> Vec<Scenario> {
    scenarios! {
        // They restart or disable the network.
        network:
            connections_survive_restarts_of_the_fabric_and_of_the_managers,
            tls_replaces_udp_while_udp_is_blocked,
            gateways_renew_their_keys_and_lose_nothing,
            a_network_that_is_disabled_ends_on_both_sides_and_comes_back;
        // They give rome and milan more virtual nodes.
        peering:
            two_way_peering_works,
            a_hostile_node_name_or_label_does_nothing;
    }
}

/// Namespaces that are offloaded, what the command line says of them, and pods there that ask for
/// too much.
fn offloaded_namespaces() -> Vec<Scenario> {
    scenarios! {
        offloading:
            the_namespace_offloading_in_the_docs_works,
            a_cluster_selector_limits_where_pods_go,
            a_namespace_with_strategy_local_exists_at_the_peer_without_pods,
            a_namespace_that_exists_at_the_provider_is_not_taken_over,
            pods_that_may_not_travel_show_why,
            a_pod_that_no_provider_can_run_stays_at_home,
            a_pod_that_the_webhook_did_not_see_is_repaired_while_it_has_no_node,
            what_one_file_says_holds_from_the_first_pod_on,
            a_namespace_that_clusters_keep_for_themselves_is_refused_at_once,
            unoffloading_brings_pods_home_and_removes_the_remote_namespace,
            a_daemon_set_has_no_pod_on_a_virtual_node;
        command_line:
            an_offloaded_namespace_keeps_the_settings_that_are_not_named,
            the_way_of_a_pod_is_explained_up_to_the_provider,
            unoffloading_evicts_pods_as_disruption_budgets_allow;
        colleague:
            a_colleague_with_one_namespace_offloads_it_and_nothing_else;
        hostile_pods:
            a_pod_that_asks_for_nothing_is_charged_and_limited_and_keeps_its_own_labels,
            a_pod_reads_no_secret_of_the_provider_and_probes_none_of_its_nodes,
            no_token_leaves_a_namespace_that_does_not_allow_it;
    }
}

/// Milan enforces `NetworkPolicies` from then on. The first one also changes the policies for
/// rome's pods, and the last one ends the network of rome and milan.
fn enforced_network_policies() -> Vec<Scenario> {
    scenarios! {
        enforced_network_policies:
            packets_obey_network_policies,
            a_cluster_knows_that_it_enforces_network_policies;
        api_access:
            a_pod_that_requires_its_api_server_waits_until_it_is_reachable;
    }
}

/// The last ones of the set of pods and policies.
fn doctor_and_the_end() -> Vec<Scenario> {
    scenarios! {
        // The doctor would report what other scenarios do as faults.
        doctor:
            the_doctor_finds_no_fault_in_healthy_clusters,
            the_doctor_names_a_manager_that_does_not_run,
            the_doctor_names_a_missing_right,
            the_doctor_names_the_direction_that_loses_packets;
        install:
            uninstalling_leaves_nothing;
    }
}

/// Services, the network, offers, and outages. Turin has two nodes, which are both gateways, and
/// its pods have a range of their own. The clusters have IPv6 in addition to IPv4.
fn network_and_sharing() -> Set {
    Set {
        clusters: Clusters {
            instance: "test2",
            nodes_of_turin: 2,
            dual_stack: true,
            metrics: true,
            milans_node_grace_seconds: Some(20),
            turins_pod_octet: Some(kept_addresses::TURINS_POD_OCTET),
            ..Clusters::default()
        },
        parallel: scenarios! {
            matrix:
                every_path_between_a_consumer_and_its_provider_works;
            dual_stack:
                ranges_of_both_families_are_detected_and_negotiated;
            services:
                pods_of_a_stateful_set_have_their_names_in_both_clusters;
            metrics:
                remote_pods_are_measured_and_scaled_by_what_they_use;
            plugins:
                the_manifests_of_all_plugins_and_of_a_new_one_start_a_ready_pod;
            enforcement:
                a_pod_shows_which_of_its_objects_the_provider_does_not_have;
            events:
                warnings_about_remote_pods_are_events_of_the_local_pods;
            // Its pod is larger than every offer.
            sharing:
                pods_that_exceed_the_offer_are_refused_with_a_reason;
        },
        with_turin: scenarios! {
            isolation:
                two_consumers_cannot_see_or_touch_each_other;
            // Milan's policy applies to all peers, but rome was approved before.
            approval:
                a_consumer_waits_until_a_person_approves_it,
                a_refused_consumer_sees_that_in_its_status,
                a_consumer_that_nobody_approves_expires;
            offers:
                a_person_accepts_refuses_and_forgets_an_offer;
        },
        alone: scenarios! {
            // It waits until nothing is written.
            dual_stack:
                pods_and_services_have_addresses_of_both_families_on_both_sides;
            // They end the network of rome and milan, stop rome's manager, or wait until nothing is
            // written.
            services:
                services_are_reflected_with_endpoints_as_the_provider_sees_them,
                a_hostile_consumer_adds_no_endpoints_outside_its_prefixes_and_services;
            exposure:
                ingresses_and_load_balancers_have_classes_that_the_provider_allows;
            network_policies:
                policies_are_translated_and_follow_the_pods_at_home,
                a_hostile_consumer_opens_nothing_of_the_provider;
            // They kill or delete the managers of turin, rome and milan.
            takeover:
                a_rollout_completes_although_the_leaders_of_both_clusters_die,
                rollouts_complete_whenever_all_managers_are_deleted;
            // They take milan's auth endpoint away, and restart its API server with another CA.
            credentials:
                nothing_fails_while_credentials_are_renewed,
                a_peering_heals_when_the_providers_api_server_gets_another_ca;
            // It restarts milan's manager and gateway.
            through_tunnel:
                a_consumer_borrows_from_a_provider_that_exposes_only_its_tunnel;
            // They cut milan or rome off.
            outages:
                the_kube_controller_manager_starts_while_there_are_virtual_nodes,
                an_outage_moves_no_pod_at_first_then_shows_on_node_and_pods_and_heals,
                an_absent_consumer_loses_endpoints_and_room_and_gets_both_back,
                unpeering_from_a_dead_peer_succeeds_and_leaves_nothing;
        }
        .into_iter()
        .chain(rome_and_turin())
        .chain(at_home_and_lending())
        .collect(),
        groups: vec![
            offers(),
            behind_a_broker(),
            tethered(),
            jobs_and_metering(),
            contracts(),
            prices_and_plugins(),
            becoming_a_broker(),
            conformance(),
        ],
        last: Vec::new(),
    }
}

/// They peer rome with turin, which gives rome another virtual node.
fn rome_and_turin() -> Vec<Scenario> {
    scenarios! {
        kept_addresses:
            members_of_one_application_know_each_other_by_their_own_addresses;
        matrix:
            a_lost_gateway_is_replaced_and_connections_continue,
            leaves_reach_each_other_through_a_hub_only_if_its_policy_allows_it;
    }
}

/// They need metrics, the usual domain, or a milan that soon takes a silent node for dead.
fn at_home_and_lending() -> Vec<Scenario> {
    scenarios! {
        // Beside others its hundreds of commands would take so much that managers lose their
        // Leases.
        as_at_home:
            kubectl_says_the_same_of_a_pod_at_home_and_of_one_at_the_peer;
        // They change milan's offer to rome, or milan's nodes.
        lending:
            two_clusters_lend_to_each_other,
            without_enforced_network_policies_a_cluster_lends_only_after_an_explicit_yes;
    }
}

/// They change milan's offer to rome, or milan's nodes.
fn offers() -> Vec<Scenario> {
    scenarios! {
        sharing:
            the_offer_follows_the_free_capacity_and_the_node_follows_the_offer,
            the_ledgers_metrics_show_what_is_offered_and_used;
        policies:
            two_peers_with_different_policies_get_different_offers,
            usage_beyond_a_new_cap_is_reclaimed_after_the_notice,
            a_node_has_a_plugins_amounts_and_follows_its_arguments,
            a_plugin_offers_what_is_free_on_labelled_nodes;
        // While turin and milan peer, milan's offer to rome changes.
        discovery:
            clusters_on_a_network_find_each_other_and_peer_by_a_policy,
            clusters_of_a_dns_domain_are_found_and_a_broken_entry_does_not_matter;
        pools:
            each_pool_is_a_virtual_node_and_its_pods_run_on_nodes_of_the_pool;
    }
}

/// They taint rome's nodes. They wait unless Kubernetes' tests were built before.
fn conformance() -> Vec<Scenario> {
    let all = scenarios! {
        conformance:
            kubernetes_tests_of_volumes_pass,
            kubernetes_tests_of_controllers_pass,
            kubernetes_tests_of_pods_pass;
    };
    all.into_iter()
        .map(Scenario::with_kubernetes_tests)
        .collect()
}

/// They change the policies `default` of all clusters. The first one also peers rome with turin.
fn prices_and_plugins() -> Vec<Scenario> {
    scenarios! {
        placement:
            a_deployment_goes_to_the_cheaper_provider_and_after_a_price_change_to_the_other;
        prices:
            prices_get_from_the_policy_to_the_node_and_follow_time_and_utilization,
            a_node_that_becomes_too_dear_keeps_its_pods_and_takes_no_new_ones,
            an_offer_that_costs_too_much_waits_until_the_price_falls;
        plugins:
            a_plugin_that_lies_hangs_or_dies_is_reported_and_its_last_offer_stays,
            a_plugin_that_floods_or_disconnects_does_not_keep_the_manager_busy,
            prices_of_a_plugin_replace_those_of_the_policy_and_one_without_prices_changes_nothing;
    }
}

/// Four clusters: rome borrows from milan, which borrows from turin and florence.
fn two_providers() -> Set {
    Set {
        clusters: Clusters {
            instance: "test3",
            nodes_of_turin: 1,
            florence: true,
            ..Clusters::default()
        },
        parallel: Vec::new(),
        with_turin: Vec::new(),
        alone: scenarios! {
            two_providers:
                a_broker_lends_the_sum_of_two_providers_while_one_leaves_and_comes_back;
        },
        groups: Vec::new(),
        last: Vec::new(),
    }
}

fn main() -> ExitCode {
    if rustls::crypto::ring::default_provider()
        .install_default()
        .is_err()
    {
        eprintln!("a TLS provider was installed already");
    }
    runner::run(vec![
        network_and_sharing(),
        pods_and_policies(),
        two_providers(),
    ])
}
