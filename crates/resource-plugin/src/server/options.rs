//! The flags of every plugin.

use std::{
    net::{IpAddr, Ipv6Addr},
    path::PathBuf,
};

use clap::{Args, Command, FromArgMatches as _, value_parser};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

use crate::wire::Generation;

/// Libraries that log each frame of a connection at the levels debug and trace.
const QUIET_LIBRARIES: &str =
    "h2=info,hyper=info,hyper_util=info,rustls=info,tonic=info,tower=info";
/// Default port of plugins.
pub const DEFAULT_PORT: u16 = 6001;

/// The flags of every plugin. Flatten them into your own arguments, or parse only them with
/// [`Options::parse`].
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Port to serve on
    #[arg(long, default_value_t = DEFAULT_PORT, value_parser = value_parser!(u16).range(1..))]
    pub port: u16,
    /// Address to serve on [default: every address of the pod]
    #[arg(long, default_value_t = IpAddr::V6(Ipv6Addr::UNSPECIFIED), hide_default_value = true)]
    pub address: IpAddr,
    /// Generation of the protocol
    #[arg(long, value_enum, ignore_case = true, default_value_t)]
    pub generation: Generation,
    /// Certificate chain (PEM): serve with TLS instead of plain text
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Serve only callers with a certificate of this authority (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,
    /// Log messages of this level and above: off, error, warn, info, debug, trace. The environment
    /// variable `RUST_LOG` overrides it
    #[arg(long, default_value_t = LevelFilter::INFO, value_name = "LEVEL")]
    pub log_level: LevelFilter,
    /// Port for /metrics, /healthz and /readyz over HTTP; 0 for none
    #[arg(long, default_value_t = 0, value_name = "PORT")]
    pub metrics_port: u16,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            port: DEFAULT_PORT,
            address: IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            generation: Generation::default(),
            tls_cert: None,
            tls_key: None,
            tls_client_ca: None,
            log_level: LevelFilter::INFO,
            metrics_port: 0,
        }
    }
}

impl Options {
    /// Parses the command line of a plugin that has no other flags. It exits if the command line is
    /// invalid or asks for help.
    pub fn parse() -> Self {
        // Help shows the name of the program from the command line.
        Self::from_arg_matches(&Self::command().get_matches()).unwrap_or_else(|error| error.exit())
    }

    fn command() -> Command {
        // The doc comment above is for authors of plugins, not for users.
        Self::augment_args(Command::new("plugin"))
            .about("Tell Liqo what each peer of this cluster is offered")
            .long_about(None)
    }

    /// Starts logging to standard error, unless the program has its own logger. [`crate::serve`]
    /// calls it; call it earlier to log what happens before.
    pub fn start_logging(&self) {
        let filter = std::env::var("RUST_LOG")
            .ok()
            .and_then(|wanted| without_frames(&wanted).parse().ok())
            .unwrap_or_else(|| EnvFilter::new(without_frames(&self.log_level.to_string())));
        let log = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(false);
        let _ = log.try_init();
    }
}

/// The filter without the messages of libraries about each frame of a connection, which would hide
/// the plugin's own. A later directive, which names a library, overrides this.
fn without_frames(wanted: &str) -> String {
    if wanted.split(',').any(is_detailed) {
        format!("{QUIET_LIBRARIES},{wanted}")
    } else {
        wanted.to_owned()
    }
}

fn is_detailed(directive: &str) -> bool {
    matches!(
        directive.trim().parse(),
        Ok(LevelFilter::DEBUG | LevelFilter::TRACE)
    )
}

#[cfg(test)]
mod tests {
    use tracing::{Level, enabled, subscriber::with_default};

    use super::*;

    #[test]
    fn debug_shows_the_plugins_messages_and_no_frames() {
        let shown = |wanted: &str| {
            let filter: EnvFilter = without_frames(wanted).parse().unwrap();
            with_default(
                tracing_subscriber::fmt()
                    .with_env_filter(filter)
                    .with_writer(std::io::sink)
                    .finish(),
                || {
                    (
                        enabled!(target: "gpu_share", Level::DEBUG),
                        enabled!(target: "h2::codec::framed_read", Level::DEBUG),
                        enabled!(target: "tonic::transport", Level::INFO),
                    )
                },
            )
        };
        assert_eq!(shown("debug"), (true, false, true));
        assert_eq!(shown("info,gpu_share=debug"), (true, false, true));
        assert_eq!(
            shown("debug,h2=debug"),
            (true, true, true),
            "somebody wants to see them"
        );
        assert_eq!(shown("off"), (false, false, false));
    }

    fn parse(arguments: &[&str]) -> Result<Options, String> {
        let matches = Options::command()
            .try_get_matches_from([&["plugin"], arguments].concat())
            .map_err(|error| error.to_string())?;
        Options::from_arg_matches(&matches).map_err(|error| error.to_string())
    }

    #[test]
    fn the_flags_are_valid_and_have_the_defaults_of_options() {
        Options::command().debug_assert();
        assert!(
            Options::command()
                .render_long_help()
                .to_string()
                .starts_with("Tell Liqo what")
        );
        assert_eq!(
            format!("{:?}", parse(&[]).unwrap()),
            format!("{:?}", Options::default())
        );
        let options = parse(&[
            "--port",
            "7000",
            "--generation",
            "p1",
            "--log-level",
            "debug",
            "--metrics-port",
            "8080",
        ])
        .unwrap();
        assert_eq!(
            (options.port, options.generation, options.metrics_port),
            (7000, Generation::P1, 8080)
        );
        assert_eq!(
            parse(&["--generation", "P2"]).unwrap().generation,
            Generation::P2,
            "the spelling in policies"
        );
    }

    #[test]
    fn invalid_flags_are_refused() {
        for arguments in [
            &["--port", "0"][..],
            &["--port", "65536"],
            &["--port", "-1"],
            &["--generation", "p4"],
            &["--tls-cert", "a"],
            &["--tls-key", "a"],
            &["--tls-client-ca", "a"],
            &["--log-level", "loud"],
            &["--address", "localhost"],
        ] {
            assert!(parse(arguments).is_err(), "{arguments:?}");
        }
    }
}
