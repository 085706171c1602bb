//! Decides what this cluster says on the local network about itself, and when.

use std::net::IpAddr;

use liqo_api::ClusterId;
use simple_dns::{
    CLASS, Name, Packet, PacketFlag, ResourceRecord,
    rdata::{A, AAAA, PTR, RData, SRV, TXT},
};

use crate::{
    announcement::service_in,
    lan_table::LAN_DOMAIN,
    message::{DnsMessage, DnsRecordData, DnsRecordType},
};

/// Time to live of our records in seconds. They are announced again in a quarter of it.
pub const TTL: u32 = 120;

/// This cluster, as it announces itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnAnnouncement {
    pub cluster_id: ClusterId,
    pub cluster_name: String,
    /// The first and the last version of the protocol that it speaks.
    pub protocol: [u32; 2],
    /// Host of the auth endpoint's URL: an address, or a name that other clusters can resolve.
    pub host: String,
    pub port: u16,
}

impl OwnAnnouncement {
    /// `None` if the URL is not one of an auth endpoint: `https://HOST:PORT` without a path.
    pub fn new(
        cluster_id: ClusterId,
        cluster_name: String,
        protocol: [u32; 2],
        auth_url: &str,
    ) -> Option<Self> {
        let authority = auth_url.strip_prefix("https://")?.trim_end_matches('/');
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']')?;
                (host, rest.strip_prefix(':'))
            }
            None => authority
                .split_once(':')
                .map_or((authority, None), |(host, port)| (host, Some(port))),
        };
        let port = port.map_or(Some(443), |port| port.parse().ok())?;
        let good = !host.is_empty() && !host.contains(['/', '?', '#', '@']);
        good.then(|| Self {
            cluster_id,
            cluster_name,
            protocol,
            host: host.to_owned(),
            port,
        })
    }

    /// The name of the instance. It contains the ID, which no other cluster has, so names need not
    /// be negotiated.
    fn instance_name(&self) -> String {
        format!("{}.{}", self.cluster_id, service_in(LAN_DOMAIN))
    }

    /// Whether a message asks for what this cluster announces, and does not know it yet.
    pub fn is_asked(&self, message: &DnsMessage) -> bool {
        if message.is_response {
            return false;
        }
        let (service, instance) = (service_in(LAN_DOMAIN), self.instance_name());
        let asks = message.questions.iter().any(|question| {
            (question.name == service
                && matches!(question.kind, DnsRecordType::Ptr | DnsRecordType::Any))
                || (question.name == instance
                    && matches!(
                        question.kind,
                        DnsRecordType::Srv | DnsRecordType::Txt | DnsRecordType::Any
                    ))
        });
        // Known answers are not repeated (RFC 6762, section 7.1).
        let knows = message.records.iter().any(|record| {
            record.name == service
                && record.ttl >= TTL / 2
                && record.data == DnsRecordData::Ptr(instance.clone())
        });
        asks && !knows
    }

    /// The bytes of the answer: everything about this cluster in one message. With `ttl` 0 it is
    /// the goodbye.
    pub fn encode_answer(&self, ttl: u32) -> Option<Vec<u8>> {
        let (service, instance) = (service_in(LAN_DOMAIN), self.instance_name());
        let address: Option<IpAddr> = self.host.parse().ok();
        let host = if address.is_some() {
            format!("{}.{LAN_DOMAIN}", self.cluster_id)
        } else {
            self.host.clone()
        };
        let mut packet = Packet::new_reply(0);
        packet.set_flags(PacketFlag::AUTHORITATIVE_ANSWER);
        packet.answers.push(record_of(
            &service,
            ttl,
            RData::PTR(PTR(Name::new(&instance).ok()?)),
        )?);
        let server = SRV {
            priority: 0,
            weight: 0,
            port: self.port,
            target: Name::new(&host).ok()?,
        };
        let mut text = TXT::new();
        let [first, last] = self.protocol;
        for (key, value) in [
            ("txtvers", "1".to_owned()),
            ("id", self.cluster_id.to_string()),
            ("name", self.cluster_name.clone()),
            ("versions", format!("{first}-{last}")),
        ] {
            text.add_attribute(key, Some(value.as_bytes())).ok()?;
        }
        let mut own = vec![
            record_of(&instance, ttl, RData::SRV(server))?,
            record_of(&instance, ttl, RData::TXT(text))?,
        ];
        match address {
            Some(IpAddr::V4(address)) => {
                own.push(record_of(&host, ttl, RData::A(A::from(address)))?);
            }
            Some(IpAddr::V6(address)) => {
                own.push(record_of(&host, ttl, RData::AAAA(AAAA::from(address)))?);
            }
            None => {}
        }
        // Only this cluster has these records, so others replace what they knew.
        packet.additional_records = own
            .into_iter()
            .map(|record| record.with_cache_flush(true))
            .collect();
        packet.build_bytes_vec_compressed().ok()
    }
}

fn record_of<'a>(owner: &str, ttl: u32, data: RData<'a>) -> Option<ResourceRecord<'a>> {
    let owner = Name::new(owner).ok()?.into_owned();
    Some(ResourceRecord::new(owner, CLASS::IN, ttl, data))
}

/// The bytes of the question for all clusters on the local network.
pub fn encode_browse_question() -> Option<Vec<u8>> {
    let question = crate::message::DnsQuestion {
        name: service_in(LAN_DOMAIN),
        kind: DnsRecordType::Ptr,
    };
    crate::message::encode_question(0, &question, false)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{
        announcement::tests::id,
        lan_table::{LanNotice, read_notices},
        message::{DnsRecord, MAX_UDP_LEN, parse_message},
    };

    pub(crate) fn own(url: &str) -> OwnAnnouncement {
        OwnAnnouncement::new(id(1), "rome".into(), [1, 2], url).unwrap()
    }

    pub(crate) fn answer() -> Vec<u8> {
        own("https://203.0.113.5:30443").encode_answer(TTL).unwrap()
    }

    #[test]
    fn others_read_what_a_cluster_announces() {
        for (url, read_as) in [
            ("https://203.0.113.5:30443", "https://203.0.113.5:30443"),
            ("https://[2001:db8::5]:30443", "https://[2001:db8::5]:30443"),
            ("https://rome.example.org/", "https://rome.example.org:443"),
        ] {
            let bytes = own(url).encode_answer(TTL).unwrap();
            assert!(bytes.len() < 500, "{} bytes", bytes.len());
            let message = parse_message(&bytes, MAX_UDP_LEN).unwrap();
            let all = read_notices(&message);
            let [LanNotice::Present(found, TTL)] = all.as_slice() else {
                panic!("{all:?}")
            };
            assert_eq!(
                (
                    &found.cluster_id,
                    found.cluster_name.as_str(),
                    found.protocol
                ),
                (&id(1), "rome", [1, 2])
            );
            assert_eq!(found.auth_urls, [read_as]);
        }
    }

    #[test]
    fn the_goodbye_names_the_cluster() {
        let bytes = own("https://203.0.113.5:30443").encode_answer(0).unwrap();
        assert_eq!(
            read_notices(&parse_message(&bytes, MAX_UDP_LEN).unwrap()),
            [LanNotice::Gone(id(1))]
        );
    }

    #[test]
    fn only_questions_for_the_service_are_answered_and_only_if_the_answer_is_news() {
        let own = own("https://203.0.113.5:30443");
        let mut asked = parse_message(&encode_browse_question().unwrap(), MAX_UDP_LEN).unwrap();
        assert!(own.is_asked(&asked));
        asked.records.push(DnsRecord {
            name: service_in(LAN_DOMAIN),
            ttl: TTL,
            data: DnsRecordData::Ptr(own.instance_name()),
        });
        assert!(!own.is_asked(&asked), "the sender knows it");
        asked.records[0].ttl = TTL / 2 - 1;
        assert!(own.is_asked(&asked), "the sender will forget it soon");
        asked.questions[0].name = "_ipp._tcp.local".into();
        assert!(!own.is_asked(&asked));
        assert!(!own.is_asked(&parse_message(&answer(), MAX_UDP_LEN).unwrap()));
    }

    #[test]
    fn only_urls_without_a_path_are_announced() {
        for bad in [
            "http://203.0.113.5",
            "https://",
            "https://a.example.org/path",
            "https://a:b",
            "203.0.113.5:443",
            "https://u@h",
        ] {
            assert_eq!(
                OwnAnnouncement::new(id(1), "rome".into(), [1, 1], bad),
                None,
                "{bad}"
            );
        }
    }
}
