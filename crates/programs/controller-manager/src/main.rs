//! `liqo-controller-manager`: its flags, and what it takes from its machine. The library documents
//! what it runs.
//!
//! `liqo-controller-manager dns` is another process: the resolver for remote pods, in a Deployment
//! of its own. See `dns`.

mod dns;

use clap::Parser;
use liqo_controller_manager::{LeadershipLost, ManagerReplica};
use liqo_controller_runtime::{
    Clock, Tcp,
    context::every_address,
    leader::LeaseTiming,
    process::{self, LogFormat, Readiness},
};
use tokio_util::sync::CancellationToken;

/// Runs every controller of Liqo in this cluster.
#[derive(Parser)]
#[command(
    version,
    about,
    after_help = "`liqo-controller-manager dns` runs the resolver for remote pods instead: see `liqo-controller-manager dns --help`."
)]
struct ManagerArguments {
    /// Namespace that Liqo runs in.
    #[arg(long, env = "POD_NAMESPACE", default_value = liqo_api::SYSTEM_NAMESPACE)]
    namespace: String,
    /// Name of this pod, its identity in the leader election.
    #[arg(long, env = "POD_NAME")]
    pod_name: String,
    /// Address of this pod, at which it serves the kubelet API of every virtual node.
    #[arg(long, env = "POD_IP")]
    pod_ip: std::net::IpAddr,
    /// Port of /healthz, /readyz and /metrics.
    #[arg(long, default_value_t = 8080)]
    health_port: u16,
    /// Port of the admission webhook.
    #[arg(long, default_value_t = 9443)]
    webhook_port: u16,
    /// Port of the auth endpoint.
    #[arg(long, default_value_t = 8443)]
    auth_port: u16,
    /// How long another replica waits before it replaces a leader that died. This one gives up
    /// after two thirds of that time without the API server.
    #[arg(long, env = "LEASE_SECONDS", default_value_t = LeaseTiming::ALONE.lease_seconds(), value_parser = clap::value_parser!(u64).range(5..=60))]
    lease_seconds: u64,
    /// Format of log lines. The environment variable `RUST_LOG` sets their level, for example
    /// `info,liqo_offloading=debug`.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    /// Image of a virtual kubelet, as earlier versions of Liqo have it. Not needed: this process
    /// serves every virtual node.
    #[arg(long, value_name = "IMAGE")]
    kubelet_image: Option<String>,
    /// Arguments of a virtual kubelet, such as --remote-ipam=server=ADDRESS. Not needed: the
    /// network between clusters translates the addresses of pods behind a broker.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    kubelet_extra_args: Vec<String>,
}

impl ManagerArguments {
    /// The flags that were given and have no effect.
    fn without_effect(&self) -> Vec<&'static str> {
        let image = self.kubelet_image.iter().map(|_| "--kubelet-image");
        image
            .chain((!self.kubelet_extra_args.is_empty()).then_some("--kubelet-extra-args"))
            .collect()
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    if std::env::args_os()
        .nth(1)
        .is_some_and(|first| first == dns::COMMAND)
    {
        return dns::main().await;
    }
    let arguments = ManagerArguments::parse();
    let health_address = every_address(arguments.pod_ip, arguments.health_port);
    let readiness = Readiness::waiting("the webhook does not answer yet");
    process::run_program(
        arguments.log_format,
        health_address,
        readiness.clone(),
        |stop| run(arguments, readiness, stop),
    )
    .await
}

async fn run(
    arguments: ManagerArguments,
    readiness: Readiness,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    for flag in arguments.without_effect() {
        tracing::info!(
            flag,
            "not needed, and without effect: there is no virtual kubelet apart from this process"
        );
    }
    let replica = ManagerReplica {
        client: process::api_client().await?,
        clock: Clock::system(),
        network: Tcp::network(),
        namespace: arguments.namespace,
        pod_name: arguments.pod_name,
        pod_ip: arguments.pod_ip,
        cluster_domain: liqo_offloading::cluster_domain::of_this_pod(),
        webhook_port: arguments.webhook_port,
        auth_port: arguments.auth_port,
        lease_seconds: arguments.lease_seconds,
    };
    let outcome = liqo_controller_manager::run(replica, readiness, stop).await;
    if outcome
        .as_ref()
        .is_err_and(anyhow::Error::is::<LeadershipLost>)
    {
        tracing::error!("leadership lost, ending at once");
        std::process::exit(1);
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_of_a_brokers_customer_are_accepted_and_have_no_effect() {
        let parse = |more: &[&str]| {
            ManagerArguments::try_parse_from(
                [
                    &[
                        "liqo-controller-manager",
                        "--pod-name=a",
                        "--pod-ip=10.0.0.1",
                    ],
                    more,
                ]
                .concat(),
            )
        };
        assert_eq!(parse(&[]).unwrap().without_effect(), [""; 0]);
        let address = "--kubelet-extra-args=--remote-ipam=server=liqo-network-manager.liqo-broker-b9d3d5.svc.cluster.local";
        let arguments = parse(&[
            "--kubelet-image=capacitorset/liqo-broker-vk:latest",
            address,
        ])
        .unwrap();
        assert_eq!(
            arguments.without_effect(),
            ["--kubelet-image", "--kubelet-extra-args"]
        );
        assert!(parse(&["--kubelet=x"]).is_err());
    }
}
