//! Whether the pod network enforces `NetworkPolicies`: what attempts to connect show, and when to
//! try again. Pure.

use std::{net::IpAddr, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use liqo_api::{
    CLOSED_PORT, NETWORK_POLICIES_ENFORCED, NetworkPoliciesEnforcedReason,
    conditions::{DesiredCondition, has_true_condition},
    isolation,
};

/// Number of rounds in a row with the same outcome before it counts: a new pod may be open for a
/// moment, and packets get lost.
const CONFIRMATIONS: u32 = 3;
/// The same for the loss of what was enforced, about two minutes: consumers lose their pods then,
/// and a plugin that restarts lets packets pass.
const CONFIRMATIONS_OF_A_LOSS: u32 = 60;
/// Delay until the next attempt while no outcome counts yet.
const CONFIRMATION_INTERVAL: Duration = Duration::from_secs(2);
/// The same while nothing can be tried.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// The network plugin may be exchanged.
const ENFORCED_INTERVAL: Duration = Duration::from_mins(10);
/// Somebody may add a network plugin, and waits for offers.
const NOT_ENFORCED_INTERVAL: Duration = Duration::from_mins(1);

/// Result of the attempts to connect to one address of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionAttempts {
    /// The port that is open to everybody accepted connections, before and after the attempt at the
    /// other one.
    pub open: bool,
    /// The port that a `NetworkPolicy` closes accepted a connection.
    pub closed: bool,
}

/// Result of all attempts of one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundOutcome {
    Enforced,
    NotEnforced,
    Unknown,
}

impl RoundOutcome {
    /// One connection that should not pass is enough: the plugin may run on some nodes only. An
    /// address whose open port does not answer shows nothing.
    pub fn of_attempts(attempts: &[ConnectionAttempts]) -> Self {
        if attempts.iter().any(|attempt| attempt.closed) {
            Self::NotEnforced
        } else if attempts.iter().any(|attempt| attempt.open) {
            Self::Enforced
        } else {
            Self::Unknown
        }
    }
}

/// The outcomes so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundOutcomes {
    last: Option<RoundOutcome>,
    in_a_row: u32,
    result: Option<bool>,
}

impl RoundOutcomes {
    /// Adds an outcome. `known` is the last result, maybe of an earlier leader. Returns the delay
    /// until the next attempt.
    pub fn add(&mut self, outcome: RoundOutcome, known: Option<bool>) -> Duration {
        let is_loss = outcome == RoundOutcome::NotEnforced && self.result.or(known) == Some(true);
        let confirmations = if is_loss {
            CONFIRMATIONS_OF_A_LOSS
        } else {
            CONFIRMATIONS
        };
        self.in_a_row = if self.last == Some(outcome) {
            self.in_a_row.saturating_add(1)
        } else {
            1
        };
        self.last = Some(outcome);
        match outcome {
            RoundOutcome::Unknown => return RETRY_INTERVAL,
            _ if self.in_a_row < confirmations => return CONFIRMATION_INTERVAL,
            RoundOutcome::Enforced | RoundOutcome::NotEnforced => {
                self.result = Some(outcome == RoundOutcome::Enforced);
            }
        }
        if outcome == RoundOutcome::Enforced {
            ENFORCED_INTERVAL
        } else {
            NOT_ENFORCED_INTERVAL
        }
    }

    /// The last outcome that counts: whether `NetworkPolicies` are enforced.
    pub fn last_result(self) -> Option<bool> {
        self.result
    }
}

/// The addresses of a pod that accepts connections at the closed port: a ready one of a version
/// that does.
pub fn pod_addresses(pod: &Pod) -> Vec<IpAddr> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let listens = ports.any(|port| port.container_port == i32::from(CLOSED_PORT));
    let Some(status) = pod
        .status
        .as_ref()
        .filter(|_| listens && pod.metadata.deletion_timestamp.is_none())
    else {
        return Vec::new();
    };
    let is_ready = has_true_condition(status.conditions.iter().flatten(), "Ready");
    let addresses = status.pod_ips.iter().flatten().filter(|_| is_ready);
    addresses
        .filter_map(|address| address.ip.parse().ok())
        .collect()
}

/// The condition of the `ClusterConfig`. `allowed` says whether this cluster lends even if nothing
/// enforces `NetworkPolicies`.
pub fn isolation_condition(enforced: Option<bool>, allowed: bool) -> DesiredCondition {
    let message = isolation::describe_lending(enforced, allowed);
    match enforced {
        Some(true) => DesiredCondition::yes(
            NETWORK_POLICIES_ENFORCED,
            NetworkPoliciesEnforcedReason::Enforced,
            message,
        ),
        Some(false) => DesiredCondition::no(
            NETWORK_POLICIES_ENFORCED,
            NetworkPoliciesEnforcedReason::NotEnforced,
            message,
        ),
        None => DesiredCondition::unknown(
            NETWORK_POLICIES_ENFORCED,
            NetworkPoliciesEnforcedReason::NotTested,
            message,
        ),
    }
}

#[cfg(test)]
mod tests {
    use liqo_api::RESOLVER_PORT;
    use serde_json::{Value, json};

    use super::*;

    const SHUT: ConnectionAttempts = ConnectionAttempts {
        open: true,
        closed: false,
    };
    const PASSED: ConnectionAttempts = ConnectionAttempts {
        open: true,
        closed: true,
    };
    const SILENT: ConnectionAttempts = ConnectionAttempts {
        open: false,
        closed: false,
    };

    #[test]
    fn one_connection_that_should_not_pass_shows_that_policies_are_not_enforced() {
        for (attempts, expected) in [
            (&[][..], RoundOutcome::Unknown),
            (&[SILENT], RoundOutcome::Unknown),
            (&[SHUT], RoundOutcome::Enforced),
            (&[SHUT, SILENT], RoundOutcome::Enforced),
            (&[SHUT, PASSED], RoundOutcome::NotEnforced),
            (
                &[
                    SILENT,
                    ConnectionAttempts {
                        open: false,
                        closed: true,
                    },
                ],
                RoundOutcome::NotEnforced,
            ),
        ] {
            assert_eq!(
                RoundOutcome::of_attempts(attempts),
                expected,
                "{attempts:?}"
            );
        }
    }

    /// The result after these outcomes, and the last delay.
    fn after(outcomes: &[RoundOutcome]) -> (Option<bool>, Duration) {
        after_known(None, outcomes)
    }

    fn after_known(known: Option<bool>, outcomes: &[RoundOutcome]) -> (Option<bool>, Duration) {
        let mut all = RoundOutcomes::default();
        let delays: Vec<Duration> = outcomes
            .iter()
            .map(|outcome| all.add(*outcome, known))
            .collect();
        (
            all.last_result(),
            delays.last().copied().unwrap_or_default(),
        )
    }

    #[test]
    fn an_outcome_counts_only_after_it_was_confirmed() {
        use RoundOutcome::{Enforced, NotEnforced, Unknown};
        assert_eq!(after(&[NotEnforced; 2]), (None, CONFIRMATION_INTERVAL));
        assert_eq!(
            after(&[NotEnforced; 3]),
            (Some(false), NOT_ENFORCED_INTERVAL)
        );
        assert_eq!(after(&[Enforced; 3]), (Some(true), ENFORCED_INTERVAL));
        assert_eq!(after(&[Enforced, Enforced, NotEnforced, Enforced]).0, None);
        assert_eq!(after(&[Unknown; 9]), (None, RETRY_INTERVAL));
    }

    #[test]
    fn what_is_known_stays_until_something_else_is_confirmed() {
        use RoundOutcome::{Enforced, NotEnforced, Unknown};
        assert_eq!(
            after(&[Enforced, Enforced, Enforced, Unknown, Unknown, Unknown]),
            (Some(true), RETRY_INTERVAL)
        );
        assert_eq!(
            after(&[Enforced, Enforced, Enforced, NotEnforced, NotEnforced]),
            (Some(true), CONFIRMATION_INTERVAL)
        );
        assert_eq!(
            after(&[
                NotEnforced,
                NotEnforced,
                NotEnforced,
                Enforced,
                Enforced,
                Enforced
            ])
            .0,
            Some(true)
        );
        // The next regular attempts need no further confirmation.
        assert_eq!(after(&[Enforced; 5]), (Some(true), ENFORCED_INTERVAL));
    }

    #[test]
    fn what_was_enforced_is_lost_only_after_two_minutes_also_for_another_leader() {
        use RoundOutcome::{Enforced, NotEnforced};
        let open = [NotEnforced; 60];
        assert_eq!(
            after_known(Some(true), &open[..59]),
            (None, CONFIRMATION_INTERVAL)
        );
        assert_eq!(after_known(Some(true), &open).0, Some(false));
        assert_eq!(after(&[&[Enforced; 3], &open[..59]].concat()).0, Some(true));
        assert_eq!(after(&[&[Enforced; 3][..], &open].concat()).0, Some(false));
        assert_eq!(after_known(Some(false), &open[..3]).0, Some(false));
    }

    fn pod(port: u16, ready: &str, deleted: &Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": { "name": "a", "deletionTimestamp": deleted },
            "spec": { "containers": [{ "name": "dns", "ports": [{ "containerPort": port }] }] },
            "status": { "podIPs": [{ "ip": "10.0.0.1" }, { "ip": "fd00::1" }], "conditions": [{ "type": "Ready", "status": ready }] },
        }))
        .unwrap()
    }

    #[test]
    fn only_ready_pods_that_listen_at_the_closed_port_are_tried() {
        assert_eq!(
            pod_addresses(&pod(CLOSED_PORT, "True", &Value::Null)).len(),
            2
        );
        assert_eq!(
            pod_addresses(&pod(CLOSED_PORT, "False", &Value::Null)).len(),
            0
        );
        assert_eq!(
            pod_addresses(&pod(CLOSED_PORT, "True", &json!("2026-01-01T00:00:00Z"))).len(),
            0
        );
        // A pod of an older version refuses the connection, as if a policy closed the port.
        assert_eq!(
            pod_addresses(&pod(RESOLVER_PORT, "True", &Value::Null)).len(),
            0
        );
    }

    #[test]
    fn the_condition_says_what_is_known() {
        let status = |enforced| isolation_condition(enforced, false).status;
        assert_eq!(
            [Some(true), Some(false), None].map(status),
            [Some(true), Some(false), None]
        );
        assert_ne!(
            isolation_condition(Some(false), false).message,
            isolation_condition(Some(false), true).message
        );
    }
}
