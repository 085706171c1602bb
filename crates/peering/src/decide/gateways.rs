//! Through which gateways this cluster calls a provider that exposes only its tunnel.

use std::net::SocketAddr;

use data_encoding::BASE64;
use liqo_api::GatewayAddress;
use liqo_tunnel_client::session::DialedGateway;

/// The gateways for calls to a provider through its tunnel: those that it announced last, and those
/// that the user gave at peering. So the provider is reachable even if all of the user's are gone,
/// or if it has announced nothing yet. Announced host names count only if the user gave them, too,
/// so that a provider cannot keep our name servers busy.
pub fn gateways_to_call(
    written: &[GatewayAddress],
    announced: &[GatewayAddress],
) -> Vec<GatewayAddress> {
    let mut all: Vec<GatewayAddress> = Vec::new();
    let announced = announced
        .iter()
        .filter(|_| !written.is_empty())
        .map(|gateway| {
            let endpoints = gateway
                .endpoints
                .iter()
                .filter(|endpoint| {
                    let mut written = written.iter();
                    endpoint.parse::<SocketAddr>().is_ok()
                        || written.any(|gateway| gateway.endpoints.contains(endpoint))
                })
                .cloned()
                .collect();
            GatewayAddress {
                endpoints,
                ..gateway.clone()
            }
        });
    for gateway in announced.chain(written.iter().cloned()) {
        let Some(known) = all
            .iter_mut()
            .find(|known| known.public_key == gateway.public_key)
        else {
            all.push(gateway);
            continue;
        };
        let new = gateway
            .endpoints
            .iter()
            .filter(|endpoint| !known.endpoints.contains(endpoint));
        let new: Vec<String> = new.cloned().collect();
        known.endpoints.extend(new);
    }
    all
}

pub fn gateways_to_dial(tunnel: &[GatewayAddress]) -> Vec<DialedGateway> {
    tunnel.iter().filter_map(dialed_gateway).collect()
}

fn dialed_gateway(gateway: &GatewayAddress) -> Option<DialedGateway> {
    let public_key = BASE64.decode(gateway.public_key.as_bytes()).ok()?;
    Some(DialedGateway {
        public_key: public_key.try_into().ok()?,
        endpoints: gateway.endpoints.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway(key: &str, endpoints: &[&str]) -> GatewayAddress {
        let endpoints = endpoints
            .iter()
            .map(|&endpoint| endpoint.to_owned())
            .collect();
        GatewayAddress {
            public_key: key.to_owned(),
            first_key: None,
            endpoints,
            tls: Vec::new(),
        }
    }

    #[test]
    fn what_a_provider_told_last_is_called_beside_what_was_written_down() {
        let written = [
            gateway("a", &["203.0.113.5:51840"]),
            gateway("b", &["203.0.113.6:51840"]),
        ];
        let announced = [
            gateway("b", &["203.0.113.9:51840"]),
            gateway("c", &["203.0.113.7:51840"]),
        ];
        let all = [
            gateway("b", &["203.0.113.9:51840", "203.0.113.6:51840"]),
            gateway("c", &["203.0.113.7:51840"]),
            gateway("a", &["203.0.113.5:51840"]),
        ];
        assert_eq!(gateways_to_call(&written, &announced), all);
        assert_eq!(gateways_to_call(&written, &[]), written);
        assert_eq!(
            gateways_to_call(&[], &announced),
            [],
            "who is called directly is not called otherwise because it has gateways"
        );
    }

    #[test]
    fn a_name_is_looked_up_only_if_it_was_written_down() {
        let written = [gateway("a", &["gateway.milan.example:51840"])];
        let announced = [gateway(
            "b",
            &[
                "gateway.milan.example:51840",
                "other.example:51840",
                "[2001:db8::1]:51840",
            ],
        )];
        assert_eq!(
            gateways_to_call(&written, &announced)[0],
            gateway("b", &["gateway.milan.example:51840", "[2001:db8::1]:51840"])
        );
    }
}
