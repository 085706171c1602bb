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
pub struct Malformed;

/// A message. Names are in lower case, without the dot at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub id: u16,
    pub is_response: bool,
    /// The rest of the answer comes only over TCP.
    pub is_truncated: bool,
    pub outcome: Outcome,
    pub questions: Vec<Question>,
    /// The records of the answer and the additional ones.
    pub records: Vec<Record>,
}

/// Result that a server reports for a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Ok,
    /// The name does not exist.
    NoSuchName,
    /// The server did not answer the question.
    Failed,
}

/// A question.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Question {
    pub name: String,
    pub kind: Kind,
}

/// The types of records that service discovery asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
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
pub struct Record {
    pub name: String,
    /// Time to live in seconds.
    pub ttl: u32,
    pub data: Data,
}

/// The data of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
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
pub fn read(bytes: &[u8], max_len: usize) -> Result<Message, Malformed> {
    let header = bytes
        .get(..HEADER_LEN)
        .filter(|_| bytes.len() <= max_len)
        .ok_or(Malformed)?;
    let (counts, _) = header.get(4..).ok_or(Malformed)?.as_chunks();
    let promised: usize = counts
        .iter()
        .map(|count| usize::from(u16::from_be_bytes(*count)))
        .sum();
    if promised > MAX_RECORDS {
        return Err(Malformed);
    }
    let packet = Packet::parse(bytes).map_err(|_| Malformed)?;
    let records = packet.answers.iter().chain(&packet.additional_records);
    Ok(Message {
        id: packet.id(),
        is_response: packet.has_flags(PacketFlag::RESPONSE),
        is_truncated: packet.has_flags(PacketFlag::TRUNCATION),
        outcome: match packet.rcode() {
            RCODE::NoError => Outcome::Ok,
            RCODE::NameError => Outcome::NoSuchName,
            _ => Outcome::Failed,
        },
        questions: packet
            .questions
            .iter()
            .map(|one| Question {
                name: text(&one.qname),
                kind: kind(one.qtype),
            })
            .collect(),
        records: records
            .filter(|record| record.class == CLASS::IN)
            .filter_map(record)
            .collect(),
    })
}

fn text(name: &simple_dns::Name<'_>) -> String {
    name.to_string().trim_end_matches('.').to_ascii_lowercase()
}

fn kind(kind: QTYPE) -> Kind {
    match kind {
        QTYPE::ANY => Kind::Any,
        QTYPE::TYPE(TYPE::PTR) => Kind::Ptr,
        QTYPE::TYPE(TYPE::SRV) => Kind::Srv,
        QTYPE::TYPE(TYPE::TXT) => Kind::Txt,
        QTYPE::TYPE(TYPE::A) => Kind::A,
        QTYPE::TYPE(TYPE::AAAA) => Kind::Aaaa,
        _ => Kind::Other,
    }
}

impl Kind {
    fn wire(self) -> QTYPE {
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

fn record(record: &simple_dns::ResourceRecord<'_>) -> Option<Record> {
    let data = match &record.rdata {
        RData::PTR(target) => Data::Ptr(text(&target.0)),
        RData::CNAME(target) => Data::Alias(text(&target.0)),
        RData::SRV(srv) => Data::Srv {
            priority: srv.priority,
            weight: srv.weight,
            port: srv.port,
            target: text(&srv.target),
        },
        RData::TXT(txt) => Data::Txt(
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
        RData::A(address) => Data::Address(IpAddr::V4(address.address.into())),
        RData::AAAA(address) => Data::Address(IpAddr::V6(address.address.into())),
        _ => return None,
    };
    Some(Record {
        name: text(&record.name),
        ttl: record.ttl,
        data,
    })
}

/// The bytes of a question. `None` if its name is not one.
pub fn question(id: u16, question: &Question, wants_recursion: bool) -> Option<Vec<u8>> {
    let mut packet = Packet::new_query(id);
    if wants_recursion {
        packet.set_flags(PacketFlag::RECURSION_DESIRED);
    }
    let name = simple_dns::Name::new(&question.name).ok()?;
    packet.questions.push(simple_dns::Question::new(
        name,
        question.kind.wire(),
        QCLASS::CLASS(CLASS::IN),
        false,
    ));
    packet.build_bytes_vec().ok()
}

/// Whether this answers the question that was sent with this ID.
pub fn is_answer(message: &Message, id: u16, asked: &Question) -> bool {
    message.is_response
        && message.id == id
        && matches!(message.questions.as_slice(), [one] if one == asked)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn asked() -> Question {
        Question {
            name: "_liqo_auth._tcp.example.org".into(),
            kind: Kind::Ptr,
        }
    }

    #[test]
    fn a_question_is_read_as_it_was_written() {
        let bytes = question(7, &asked(), true).unwrap();
        let message = read(&bytes, MAX_UDP_LEN).unwrap();
        assert_eq!(
            (message.id, message.is_response, message.questions),
            (7, false, vec![asked()])
        );
    }

    #[test]
    fn only_the_answer_to_the_same_question_counts() {
        let mut bytes = question(7, &asked(), true).unwrap();
        assert!(
            !is_answer(&read(&bytes, MAX_UDP_LEN).unwrap(), 7, &asked()),
            "a question is no answer"
        );
        bytes[2] |= 0x80;
        let answer = read(&bytes, MAX_UDP_LEN).unwrap();
        assert!(is_answer(&answer, 7, &asked()));
        assert!(!is_answer(&answer, 8, &asked()));
        assert!(!is_answer(
            &answer,
            7,
            &Question {
                kind: Kind::Srv,
                ..asked()
            }
        ));
    }

    #[test]
    fn a_header_that_promises_many_records_is_refused_before_memory_is_reserved() {
        let mut header = [0; HEADER_LEN];
        header[4..].fill(0xff);
        assert_eq!(read(&header, MAX_UDP_LEN), Err(Malformed));
        assert_eq!(read(&[0; MAX_UDP_LEN + 1], MAX_UDP_LEN), Err(Malformed));
        assert_eq!(read(&[], MAX_UDP_LEN), Err(Malformed));
    }

    #[test]
    fn a_name_that_points_to_itself_is_refused() {
        let mut bytes = vec![0, 0, 0x80, 0, 0, 0, 0, 1, 0, 0, 0, 0];
        bytes.extend_from_slice(&[0xc0, 12, 0, 12, 0, 1, 0, 0, 0, 9, 0, 2, 0xc0, 12]);
        assert_eq!(read(&bytes, MAX_UDP_LEN), Err(Malformed));
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = read(&bytes, MAX_UDP_LEN);
        }

        #[test]
        fn nor_do_bytes_that_were_once_a_message(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8)) {
            let mut bytes = crate::responder::tests::answer();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Ok(message) = read(&bytes, MAX_UDP_LEN) {
                prop_assert!(message.records.len() <= MAX_RECORDS);
            }
        }
    }
}
