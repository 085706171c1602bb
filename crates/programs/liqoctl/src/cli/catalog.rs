//! `catalog`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use liqo_api::catalog::{Parameters, Sort};

use crate::catalog::{CatalogLocation, CatalogOptions, CatalogUrl, CertificateTrust};

/// Arguments of `catalog`.
#[derive(Debug, Args)]
pub struct CatalogArguments {
    /// Name or ID of the broker: only there this sign-in counts
    /// [default: the only cluster that this one borrows from]
    #[arg(requires = "url", conflicts_with = "token_file")]
    pub peer: Option<String>,
    /// URL of the catalog, https://HOST:PORT
    /// [default: the plugin in the cluster of the kubeconfig, through its API server]
    #[arg(long, value_name = "URL")]
    pub url: Option<CatalogUrl>,
    /// Certificates (PEM) that signed the one of the catalog
    /// [default: those that this machine trusts]
    #[arg(long, value_name = "FILE", requires = "url")]
    pub ca_file: Option<PathBuf>,
    /// Accept any certificate of the catalog. Whoever is in between then reads along, and can use
    /// the sign-in for two minutes, or the token
    #[arg(long, requires = "url", conflicts_with = "ca_file")]
    pub insecure_skip_tls_verify: bool,
    /// File with a token of the broker for the audience liqo-broker-catalog, instead of a sign-in
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Only offers with prices in this currency, or that cost nothing
    #[arg(long, value_name = "CURRENCY")]
    pub currency: Option<String>,
    /// The highest price of resources for one hour, for example cpu=0.04,memory=0.01
    #[arg(long, value_name = "NAME=RATE,...", requires = "currency")]
    pub max_price: Option<String>,
    /// Only offers with these labels, as in `kubectl get --selector`
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,
    /// The highest latency between the broker and the provider
    #[arg(long, value_name = "MILLISECONDS")]
    pub max_latency: Option<u32>,
    /// Through how many clusters the resources may come to the broker
    #[arg(long, value_name = "NUMBER")]
    pub max_hops: Option<u8>,
    /// The least amounts, for example cpu=4,memory=8Gi. With --sort price, their price is compared;
    /// without, that of one core and one GiB
    #[arg(long, value_name = "NAME=QUANTITY,...")]
    pub capacity: Option<String>,
    /// Only offers that the broker accepted; with `=false`, only the others
    #[arg(long, value_name = "BOOLEAN", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub accepted: Option<bool>,
    /// The order of the offers; by price it needs --currency
    #[arg(long, value_enum, default_value_t = OfferOrder::Name, value_name = "ORDER", requires_if("price", "currency"))]
    pub sort: OfferOrder,
}

/// The order of the offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OfferOrder {
    Name,
    Price,
    Latency,
}

impl CatalogArguments {
    pub fn catalog_options(self) -> CatalogOptions {
        let trust = match (self.ca_file, self.insecure_skip_tls_verify) {
            (Some(file), _) => CertificateTrust::File(file),
            (None, true) => CertificateTrust::Any,
            (None, false) => CertificateTrust::Machine,
        };
        let place = match self.url {
            Some(url) => CatalogLocation::At {
                url,
                trust,
                broker: self.peer,
            },
            None => CatalogLocation::Here,
        };
        let sort = match self.sort {
            OfferOrder::Name => Sort::Name,
            OfferOrder::Price => Sort::Price,
            OfferOrder::Latency => Sort::Latency,
        };
        let criteria = Parameters {
            currency: self.currency,
            max_price: self.max_price,
            label_selector: self.selector,
            max_latency_milliseconds: self.max_latency,
            max_hops: self.max_hops,
            capacity: self.capacity,
            accepted: self.accepted,
            sort,
            ..Parameters::default()
        };
        CatalogOptions {
            place,
            token_file: self.token_file,
            criteria,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    fn options(arguments: &[&str]) -> Result<CatalogOptions, String> {
        let cli = Cli::try_parse_from([&["liqoctl", "catalog"], arguments].concat())
            .map_err(|error| error.to_string())?;
        let Command::Catalog(catalog) = cli.command else {
            unreachable!()
        };
        Ok(catalog.catalog_options())
    }

    #[test]
    fn every_criterion_has_a_flag() {
        let line = "--currency EUR --max-price cpu=0.04 -l region=eu --max-latency 20 --max-hops 2 --capacity cpu=4 --accepted --sort price";
        let arguments: Vec<&str> = line.split(' ').collect();
        let criteria = options(&arguments).unwrap().criteria;
        let all = serde_json::json!({
            "currency": "EUR", "maxPrice": "cpu=0.04", "labelSelector": "region=eu", "maxLatencyMilliseconds": 20, "maxHops": 2,
            "capacity": "cpu=4", "accepted": true, "sort": "price", "offset": 0,
        });
        assert_eq!(serde_json::to_value(criteria).unwrap(), all);
        assert_eq!(
            options(&["--accepted=false"]).unwrap().criteria.accepted,
            Some(false)
        );
        assert_eq!(options(&[]).unwrap().criteria, Parameters::default());
        for wrong in [
            &["--max-price", "cpu=1"][..],
            &["--sort", "price"],
            &["--sort", "size"],
            &["--max-hops", "many"],
        ] {
            assert!(options(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_catalog_is_at_a_url_or_in_this_cluster() {
        assert!(matches!(options(&[]).unwrap().place, CatalogLocation::Here));
        assert!(matches!(
            options(&["--token-file", "f"]).unwrap().place,
            CatalogLocation::Here
        ));
        let url = ["--url", "https://203.0.113.5:8443"];
        let place = |more: &[&str]| options(&[&url, more].concat()).map(|options| options.place);
        let trust = |more: &[&str]| match place(more) {
            Ok(CatalogLocation::At { trust, .. }) => trust,
            other => unreachable!("{other:?}"),
        };
        assert_eq!(trust(&[]), CertificateTrust::Machine);
        assert_eq!(
            trust(&["--ca-file", "f"]),
            CertificateTrust::File("f".into())
        );
        assert_eq!(
            trust(&["--insecure-skip-tls-verify"]),
            CertificateTrust::Any
        );
        assert!(
            matches!(place(&["milan"]), Ok(CatalogLocation::At { broker: Some(name), .. }) if name == "milan")
        );
        assert!(place(&["--ca-file", "f", "--insecure-skip-tls-verify"]).is_err());
        assert!(
            place(&["milan", "--token-file", "f"]).is_err(),
            "a token says itself for whom it is"
        );
        for wrong in [
            &["milan"][..],
            &["--ca-file", "f"],
            &["--insecure-skip-tls-verify"],
            &["--url", "http://milan"],
        ] {
            assert!(options(wrong).is_err(), "{wrong:?}");
        }
    }
}
