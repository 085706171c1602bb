//! DNS messages as far as service discovery needs them. Bounds apply before anything is parsed.

use std::net::IpAddr;

use simple_dns::{CLASS, Packet, PacketFlag, QCLASS, QTYPE, RCODE, TYPE, rdata::RData};

/// Maximum length of a message over UDP in bytes: what multicast DNS allows on an Ethernet network.
pub const MAX_UDP_LEN: usize = 1500;
/// Maximum length of a message over TCP in bytes.
pub const MAX_TCP_LEN: usize = 16 * 1024;
/// Maximum number of questions and records in a message. The parser reserves memory for as many as
/// the header promises.
pub const MAX_RECORDS: usize = 256;
/// Length of a header in bytes.
const HEADER_LEN: usize = 12;

/// The message is too long, promises too many records, or cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a malformed DNS message")]
pub struct MalformedDnsMessage;

/// A message. Names are in lower case, without the dot at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsMessage {
    pub id: u16,
    pub is_response: bool,
    /// The rest of the answer comes only over TCP.
    pub is_truncated: bool,
    pub outcome: DnsResponseCode,
    pub questions: Vec<DnsQuestion>,
    /// The records of the answer and the additional ones.
    pub records: Vec<DnsRecord>,
}

/// Result that a server reports for a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DnsResponseCode {
    Ok,
    /// The name does not exist.
    NoSuchName,
    /// The server did not answer the question.
    Failed,
}

/// A question.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DnsQuestion {
    pub name: String,
    pub kind: DnsRecordType,
}

/// The types of records that service discovery asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DnsRecordType {
    Ptr,
    Srv,
    Txt,
    A,
    Aaaa,
    Any,
    /// A type that service discovery has no use for.
    Other,
}

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsRecord {
    pub name: String,
    /// Time to live in seconds.
    pub ttl: u32,
    pub data: DnsRecordData,
}

/// The data of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DnsRecordData {
    Ptr(String),
    Srv {
        priority: u16,
        weight: u16,
        port: u16,
        target: String,
    },
    /// Keys in lower case with their values. Values that are not UTF-8 are left out.
    Txt(Vec<(String, String)>),
    Address(IpAddr),
    /// Another name for the same (CNAME).
    Alias(String),
}

/// Reads a message of at most `max_len` bytes.
pub fn parse_message(bytes: &[u8], max_len: usize) -> Result<DnsMessage, MalformedDnsMessage> {
    let header = bytes
        .get(..HEADER_LEN)
        .filter(|_| bytes.len() <= max_len)
        .ok_or(MalformedDnsMessage)?;
    let (counts, _) = header.get(4..).ok_or(MalformedDnsMessage)?.as_chunks();
    let promised: usize = counts
        .iter()
        .map(|count| usize::from(u16::from_be_bytes(*count)))
        .sum();
    if promised > MAX_RECORDS {
        return Err(MalformedDnsMessage);
    }
    let packet = Packet::parse(bytes).map_err(|_| MalformedDnsMessage)?;
    let records = packet.answers.iter().chain(&packet.additional_records);
    Ok(DnsMessage {
        id: packet.id(),
        is_response: packet.has_flags(PacketFlag::RESPONSE),
        is_truncated: packet.has_flags(PacketFlag::TRUNCATION),
        outcome: match packet.rcode() {
            RCODE::NoError => DnsResponseCode::Ok,
            RCODE::NameError => DnsResponseCode::NoSuchName,
            _ => DnsResponseCode::Failed,
        },
        questions: packet
            .questions
            .iter()
            .map(|one| DnsQuestion {
                name: name_text(&one.qname),
                kind: record_type(one.qtype),
            })
            .collect(),
        records: records
            .filter(|record| record.class == CLASS::IN)
            .filter_map(parse_record)
            .collect(),
    })
}

fn name_text(name: &simple_dns::Name<'_>) -> String {
    name.to_string().trim_end_matches('.').to_ascii_lowercase()
}

fn record_type(kind: QTYPE) -> DnsRecordType {
    match kind {
        QTYPE::ANY => DnsRecordType::Any,
        QTYPE::TYPE(TYPE::PTR) => DnsRecordType::Ptr,
        QTYPE::TYPE(TYPE::SRV) => DnsRecordType::Srv,
        QTYPE::TYPE(TYPE::TXT) => DnsRecordType::Txt,
        QTYPE::TYPE(TYPE::A) => DnsRecordType::A,
        QTYPE::TYPE(TYPE::AAAA) => DnsRecordType::Aaaa,
        _ => DnsRecordType::Other,
    }
}

impl DnsRecordType {
    fn wire_type(self) -> QTYPE {
        match self {
            Self::Ptr => TYPE::PTR.into(),
            Self::Srv => TYPE::SRV.into(),
            Self::Txt => TYPE::TXT.into(),
            Self::A => TYPE::A.into(),
            Self::Aaaa => TYPE::AAAA.into(),
            Self::Any | Self::Other => QTYPE::ANY,
        }
    }
}

fn parse_record(record: &simple_dns::ResourceRecord<'_>) -> Option<DnsRecord> {
    let data = match &record.rdata {
        RData::PTR(target) => DnsRecordData::Ptr(name_text(&target.0)),
        RData::CNAME(target) => DnsRecordData::Alias(name_text(&target.0)),
        RData::SRV(srv) => DnsRecordData::Srv {
            priority: srv.priority,
            weight: srv.weight,
            port: srv.port,
            target: name_text(&srv.target),
        },
        RData::TXT(txt) => DnsRecordData::Txt(
            txt.iter_raw()
                .filter_map(|(key, value)| {
                    let value = std::str::from_utf8(value.unwrap_or_default()).ok()?;
                    Some((
                        std::str::from_utf8(key).ok()?.to_ascii_lowercase(),
                        value.to_owned(),
                    ))
                })
                .collect(),
        ),
        RData::A(address) => DnsRecordData::Address(IpAddr::V4(address.address.into())),
        RData::AAAA(address) => DnsRecordData::Address(IpAddr::V6(address.address.into())),
        _ => return None,
    };
    Some(DnsRecord {
        name: name_text(&record.name),
        ttl: record.ttl,
        data,
    })
}

/// The bytes of a question. `None` if its name is not one.
pub fn encode_question(id: u16, question: &DnsQuestion, wants_recursion: bool) -> Option<Vec<u8>> {
    let mut packet = Packet::new_query(id);
    if wants_recursion {
        packet.set_flags(PacketFlag::RECURSION_DESIRED);
    }
    let name = simple_dns::Name::new(&question.name).ok()?;
    packet.questions.push(simple_dns::Question::new(
        name,
        question.kind.wire_type(),
        QCLASS::CLASS(CLASS::IN),
        false,
    ));
    packet.build_bytes_vec().ok()
}

/// Whether this answers the question that was sent with this ID.
pub fn is_answer(message: &DnsMessage, id: u16, asked: &DnsQuestion) -> bool {
    message.is_response
        && message.id == id
        && matches!(message.questions.as_slice(), [one] if one == asked)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn asked() -> DnsQuestion {
        DnsQuestion {
            name: "_liqo_auth._tcp.example.org".into(),
            kind: DnsRecordType::Ptr,
        }
    }

    #[test]
    fn a_question_is_read_as_it_was_written() {
        let bytes = encode_question(7, &asked(), true).unwrap();
        let message = parse_message(&bytes, MAX_UDP_LEN).unwrap();
        assert_eq!(
            (message.id, message.is_response, message.questions),
            (7, false, vec![asked()])
        );
    }

    #[test]
    fn only_the_answer_to_the_same_question_counts() {
        let mut bytes = encode_question(7, &asked(), true).unwrap();
        assert!(
            !is_answer(&parse_message(&bytes, MAX_UDP_LEN).unwrap(), 7, &asked()),
            "a question is no answer"
        );
        bytes[2] |= 0x80;
        let answer = parse_message(&bytes, MAX_UDP_LEN).unwrap();
        assert!(is_answer(&answer, 7, &asked()));
        assert!(!is_answer(&answer, 8, &asked()));
        assert!(!is_answer(
            &answer,
            7,
            &DnsQuestion {
                kind: DnsRecordType::Srv,
                ..asked()
            }
        ));
    }

    #[test]
    fn a_header_that_promises_many_records_is_refused_before_memory_is_reserved() {
        let mut header = [0; HEADER_LEN];
        header[4..].fill(0xff);
        assert_eq!(
            parse_message(&header, MAX_UDP_LEN),
            Err(MalformedDnsMessage)
        );
        assert_eq!(
            parse_message(&[0; MAX_UDP_LEN + 1], MAX_UDP_LEN),
            Err(MalformedDnsMessage)
        );
        assert_eq!(parse_message(&[], MAX_UDP_LEN), Err(MalformedDnsMessage));
    }

    #[test]
    fn a_name_that_points_to_itself_is_refused() {
        let mut bytes = vec![0, 0, 0x80, 0, 0, 0, 0, 1, 0, 0, 0, 0];
        bytes.extend_from_slice(&[0xc0, 12, 0, 12, 0, 1, 0, 0, 0, 9, 0, 2, 0xc0, 12]);
        assert_eq!(parse_message(&bytes, MAX_UDP_LEN), Err(MalformedDnsMessage));
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = parse_message(&bytes, MAX_UDP_LEN);
        }

        #[test]
        fn nor_do_bytes_that_were_once_a_message(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8)) {
            let mut bytes = crate::responder::tests::answer();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Ok(message) = parse_message(&bytes, MAX_UDP_LEN) {
                prop_assert!(message.records.len() <= MAX_RECORDS);
            }
        }
    }
}
