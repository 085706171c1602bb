//! The tunnel between namespaces: what it carries, remotes that come and go, attacks, relays, other
//! implementations. Needs root.
//!
//! Each test has its own two namespaces, which the kernel removes when the test ends, however it
//! ends.

mod carries;
mod hostile;
mod interop;
mod inward;
mod relay;
mod remotes;
mod wire;

use std::{process::ExitCode, thread, time::Duration, time::Instant};

use anyhow::{Result, ensure};
use libtest_mimic::{Arguments, Trial};
use liqo_datapath::tunnel::{EndpointConfig, Tunnel, TunnelRemoteState, UserspaceTunnel};
use liqo_datapath_testbed::{
    Pair, PairEnd,
    process::{self, TunnelSide},
};

/// Number of tests that run at a time unless the command line says otherwise: they mostly wait.
const CONCURRENT: usize = 4;

macro_rules! tests {
    ($($module:ident: $($name:ident),+ $(,)?);+ $(;)?) => {
        vec![$($(
            Trial::test(concat!(stringify!($module), "::", stringify!($name)), || {
                $module::$name().map_err(|error| format!("{error:#}").into())
            })
        ),+),+]
    };
}

fn main() -> ExitCode {
    match process::serve_if_child()
        .map_err(anyhow::Error::from)
        .and_then(|served| Ok(served || remotes::serve_dead_remotes()?))
    {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            return ExitCode::FAILURE;
        }
    }
    // Installs `ip` if it is missing.
    let install = async {
        liqo_playground::Requirements::check(&[])
            .await?
            .install(&liqo_playground::Silent)
            .await
    };
    if let Err(error) = tokio::runtime::Runtime::new()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| Ok(runtime.block_on(install)?))
    {
        eprintln!("{error:#}");
        return ExitCode::FAILURE;
    }
    // Tests that mostly wait come first, so that the others run meanwhile.
    let trials = tests! {
        relay:
            an_attack_on_a_relay_harms_nobody,
            tls_carries_everything_while_udp_is_blocked_and_the_return_to_udp_loses_nothing,
            over_ipv6_too,
            a_relay_whose_connection_breaks_reconnects_and_the_tunnel_goes_on;
        carries:
            ping_in_both_families,
            fifty_megabytes_arrive_unchanged_both_ways,
            everything_travels_over_ipv6_too,
            datagrams_of_all_sizes_arrive_unchanged,
            a_packet_that_is_too_large_and_must_not_be_fragmented_is_refused_at_once,
            a_smaller_mtu_between_the_gateways_only_costs_fragments,
            applying_the_same_again_changes_nothing_and_loses_nothing,
            handshakes_that_start_at_both_ends_at_once_end_in_one_session;
        remotes:
            a_connection_survives_the_death_of_the_process,
            a_remote_is_replaced_under_load_without_a_loss,
            our_key_changes_under_load_without_a_loss,
            a_gateway_that_moves_is_followed,
            flows_are_spread_over_the_gateways_of_a_cluster,
            the_path_to_a_remote_is_measured_while_the_remote_is_enabled,
            hundreds_of_dead_remotes_take_little_memory,
            the_device_outlives_the_tunnel_until_it_is_removed,
            a_device_that_somebody_removed_comes_back;
        hostile:
            a_packet_with_a_source_that_the_remote_may_not_use_is_dropped,
            garbage_is_counted_and_harms_nobody,
            a_replayed_packet_does_not_arrive_again,
            a_stranger_gets_no_session,
            a_flood_of_handshakes_is_answered_with_cookies_and_sessions_go_on;
        interop:
            wireguard_go_understands_us,
            wireguard_go_begins,
            wireguard_go_over_ipv6;
        inward:
            a_tunnel_client_is_answered_in_the_process;
        wire:
            an_eavesdropper_sees_no_plain_text;
    };
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(CONCURRENT));
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Two ends with our tunnel in both.
struct Tunnels {
    pair: Pair,
    sides: [TunnelSide; 2],
    ends: [UserspaceTunnel; 2],
}

impl Tunnels {
    fn new(v6: bool) -> Result<Self> {
        let tunnels = Self::prepare(v6)?;
        for end in [PairEnd::Left, PairEnd::Right] {
            tunnels.apply(end, &tunnels.side(end).endpoint())?;
            tunnels.pair.address(end, &tunnels.side(end).device, 1420)?;
        }
        Ok(tunnels)
    }

    /// Does not start the tunnels.
    fn prepare(v6: bool) -> Result<Self> {
        let ends = [UserspaceTunnel::new(), UserspaceTunnel::new()];
        Ok(Self {
            pair: Pair::new()?,
            sides: TunnelSide::both("tunnel", v6),
            ends,
        })
    }

    fn side(&self, end: PairEnd) -> &TunnelSide {
        &self.sides[usize::from(end.number()) - 1]
    }

    fn tunnel(&self, end: PairEnd) -> &UserspaceTunnel {
        &self.ends[usize::from(end.number()) - 1]
    }

    fn apply(&self, end: PairEnd, endpoint: &EndpointConfig) -> Result<()> {
        Ok(self
            .pair
            .end(end)
            .run(|| self.tunnel(end).apply(endpoint))??)
    }

    fn endpoint(&self, end: PairEnd) -> EndpointConfig {
        self.side(end).endpoint()
    }

    /// The first remote of an end.
    fn remote(&self, end: PairEnd) -> Result<TunnelRemoteState> {
        self.tunnel(end)
            .state()
            .remotes
            .into_iter()
            .next()
            .ok_or_else(|| anyhow::anyhow!("no remote"))
    }
}

/// Waits until the condition holds, for at most 30 s.
fn until(what: &str, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition()? {
        ensure!(
            Instant::now() < deadline,
            "timeout while waiting for {what}"
        );
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
