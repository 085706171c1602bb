//! Reads and writes DNS messages (RFC 1035), as far as names are concerned. Everything else is
//! copied as it is. Pure.
//!
//! It is written by hand because a translated answer must keep what this module does not know: all
//! bits of the header, EDNS with its flags and options, and records of unknown types.

use std::{collections::HashMap, ops::Range};

/// Length of a header in bytes.
pub const HEADER_LEN: usize = 12;
/// Maximum length of a name in bytes, with its root label.
const MAX_NAME_LEN: usize = 255;
/// Maximum length of a label in bytes.
const MAX_LABEL_LEN: usize = 63;
/// A compression pointer has 14 bits.
const MAX_POINTER: usize = 0x3fff;
/// Maximum number of pointers in a name. A name has at most 127 labels, so a useful one needs no
/// more.
const MAX_POINTERS: usize = 127;
/// Maximum length of a message over UDP without EDNS, in bytes.
const MAX_UDP_LEN: usize = 512;
/// Maximum length of an answer over UDP with EDNS, in bytes. Longer ones come over TCP.
const MAX_EDNS_LEN: u16 = 4096;

/// Time to live of the records that this resolver adds, in seconds: what the DNS of a cluster gives
/// by default.
const ALIAS_TTL: u32 = 5;
/// The bit AD in the fourth byte of a header: all records are authentic (RFC 4035).
const AUTHENTIC_DATA: u8 = 0x20;
/// The class of the internet.
const IN: u16 = 1;

/// The response codes that this resolver sets itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseCode {
    NoError = 0,
    FormatError = 1,
    ServerFailure = 2,
    NoSuchName = 3,
    NotImplemented = 4,
}

/// Types of records whose data contains names.
mod types {
    pub const NS: u16 = 2;
    pub const CNAME: u16 = 5;
    pub const SOA: u16 = 6;
    pub const PTR: u16 = 12;
    pub const MX: u16 = 15;
    pub const SRV: u16 = 33;
    pub const DNAME: u16 = 39;
    pub const OPT: u16 = 41;
    /// Only in questions: all records of a name.
    pub const ANY: u16 = 255;
}
pub use types::{ANY, CNAME, PTR};

/// A message that ends too early, has a name that is too long, or a pointer that does not point
/// back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a malformed DNS message")]
pub struct MalformedMessage;

/// A name: its labels without the root. Comparisons ignore the case of ASCII letters.
#[derive(Clone, Debug)]
pub struct DomainName(Vec<Vec<u8>>);

impl PartialEq for DomainName {
    fn eq(&self, other: &Self) -> bool {
        self.0.len() == other.0.len() && self.ends_with(other)
    }
}

impl Eq for DomainName {}

impl DomainName {
    /// A name in its usual form, such as `web.demo.svc.cluster.local`.
    pub fn parse(text: &str) -> Option<Self> {
        let labels = text.strip_suffix('.').unwrap_or(text).split('.');
        let name = Self(labels.map(|label| label.as_bytes().to_vec()).collect());
        let labels_fit = name
            .0
            .iter()
            .all(|label| (1..=MAX_LABEL_LEN).contains(&label.len()));
        (labels_fit && name.wire_len() <= MAX_NAME_LEN).then_some(name)
    }

    pub fn labels(&self) -> &[Vec<u8>] {
        &self.0
    }

    /// Whether this is a name that belongs to an address: `7.0.244.10.in-addr.arpa`.
    pub fn is_reverse(&self) -> bool {
        let [.., zone, arpa] = self.0.as_slice() else {
            return false;
        };
        arpa.eq_ignore_ascii_case(b"arpa")
            && [&b"in-addr"[..], b"ip6"]
                .iter()
                .any(|reverse| zone.eq_ignore_ascii_case(reverse))
    }

    pub fn ends_with(&self, end: &Self) -> bool {
        let mut labels = self.0.iter().rev().zip(end.0.iter().rev());
        self.0.len() >= end.0.len()
            && labels.all(|(mine, theirs)| mine.eq_ignore_ascii_case(theirs))
    }

    /// The same name with another label at this index. `None` if that is too long.
    pub fn with_label(&self, index: usize, label: &str) -> Option<Self> {
        let mut name = self.clone();
        *name.0.get_mut(index)? = label.as_bytes().to_vec();
        name.within_limit().filter(|_| label.len() <= MAX_LABEL_LEN)
    }

    /// The same name. `None` if it is too long.
    pub fn within_limit(self) -> Option<Self> {
        (self.wire_len() <= MAX_NAME_LEN).then_some(self)
    }

    /// The same name that ends with `end` instead of its labels from this index on. It may be too
    /// long.
    #[must_use]
    pub fn with_end(&self, index: usize, end: &Self) -> Self {
        if self.0.len() == index + end.0.len() && self.ends_with(end) {
            return self.clone();
        }
        Self(self.0.iter().take(index).chain(&end.0).cloned().collect())
    }

    /// Length in bytes without compression.
    fn wire_len(&self) -> usize {
        self.0.iter().map(|label| label.len() + 1).sum::<usize>() + 1
    }

    /// Reads the name at `position`, and moves `position` behind it. A pointer points to what is
    /// before the name, so this ends.
    fn read_at(message: &[u8], position: &mut usize) -> Result<Self, MalformedMessage> {
        let (mut labels, mut length, mut at, mut end) = (Vec::new(), 1, *position, None);
        let (mut earliest, mut pointers) = (*position, 0);
        loop {
            let first = usize::from(*message.get(at).ok_or(MalformedMessage)?);
            match first {
                0 => {
                    *position = end.unwrap_or(at + 1);
                    return Ok(Self(labels));
                }
                1..=MAX_LABEL_LEN => {
                    length += first + 1;
                    if length > MAX_NAME_LEN {
                        return Err(MalformedMessage);
                    }
                    labels.push(
                        message
                            .get(at + 1..at + 1 + first)
                            .ok_or(MalformedMessage)?
                            .to_vec(),
                    );
                    at += 1 + first;
                }
                0xc0..=0xff => {
                    let second = usize::from(*message.get(at + 1).ok_or(MalformedMessage)?);
                    end = end.or(Some(at + 2));
                    at = ((first & 0x3f) << 8) | second;
                    pointers += 1;
                    if at >= earliest || pointers > MAX_POINTERS {
                        return Err(MalformedMessage);
                    }
                    earliest = at;
                }
                _ => return Err(MalformedMessage),
            }
        }
    }
}

fn read_u16(message: &[u8], at: usize) -> Result<u16, MalformedMessage> {
    let bytes = message
        .get(at..)
        .and_then(<[u8]>::first_chunk)
        .ok_or(MalformedMessage)?;
    Ok(u16::from_be_bytes(*bytes))
}

/// The ID of a message; 0 if it is shorter than a header.
pub fn id(message: &[u8]) -> u16 {
    read_u16(message, 0).unwrap_or_default()
}

/// Replaces the ID of a message.
pub fn set_id(message: &mut [u8], id: u16) {
    if let Some(bytes) = message.get_mut(..2) {
        bytes.copy_from_slice(&id.to_be_bytes());
    }
}

/// A question of a client.
#[derive(Clone, Debug)]
pub struct Query {
    pub name: DomainName,
    pub kind: u16,
    /// The question, without the header.
    question: Range<usize>,
    /// Whether nothing follows the question but the record of EDNS, so that the name can be
    /// replaced.
    pub is_simple: bool,
    /// Maximum length of an answer over UDP, in bytes.
    pub udp_len: usize,
}

/// The reason why a message is not a question that can be asked upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryFault {
    /// Not even its header can be read, or it is an answer: nobody gets an answer.
    Drop,
    Answer(ResponseCode),
}

impl Query {
    pub fn read(message: &[u8]) -> Result<Self, QueryFault> {
        let flags = read_u16(message, 2).map_err(|_| QueryFault::Drop)?;
        if message.len() < HEADER_LEN || flags & 0x8000 != 0 {
            return Err(QueryFault::Drop);
        }
        if flags & 0x7800 != 0 {
            return Err(QueryFault::Answer(ResponseCode::NotImplemented));
        }
        Self::read_body(message)
            .map_err(|MalformedMessage| QueryFault::Answer(ResponseCode::FormatError))
    }

    fn read_body(message: &[u8]) -> Result<Self, MalformedMessage> {
        let [questions, answers, authorities, additional] = record_counts(message)?;
        if (questions, answers, authorities) != (1, 0, 0) {
            return Err(MalformedMessage);
        }
        let mut at = HEADER_LEN;
        let name = DomainName::read_at(message, &mut at)?;
        let kind = read_u16(message, at)?;
        read_u16(message, at + 2)?;
        let question = HEADER_LEN..at + 4;
        let edns = edns_len(message, question.end).filter(|_| additional == 1);
        let is_simple = edns.is_some() || (additional == 0 && message.len() == question.end);
        // What the client of another question allows is not known.
        let allowed = if is_simple {
            edns.unwrap_or_default()
        } else {
            usize::from(MAX_EDNS_LEN)
        };
        let udp_len = allowed.clamp(MAX_UDP_LEN, usize::from(MAX_EDNS_LEN));
        Ok(Self {
            name,
            kind,
            question,
            is_simple,
            udp_len,
        })
    }

    /// The same message, which allows answers of at most [`MAX_EDNS_LEN`].
    pub fn with_capped_size(&self, message: &[u8]) -> Vec<u8> {
        let mut capped = message.to_vec();
        // Where EDNS says it, if there is more than the question.
        let at = self.question.end + 3;
        if self.is_simple
            && let Some(bytes) = capped.get_mut(at..at + 2)
            && read_u16(bytes, 0).is_ok_and(|allowed| allowed > MAX_EDNS_LEN)
        {
            bytes.copy_from_slice(&MAX_EDNS_LEN.to_be_bytes());
        }
        capped
    }

    /// The same message with another name in its question. `None` if this question is not that of
    /// the message.
    pub fn with_name(&self, message: &[u8], name: &DomainName) -> Option<Vec<u8>> {
        let mut writer = MessageWriter::new(message).ok()?;
        writer.write_name(name, false);
        writer
            .body
            .extend_from_slice(message.get(self.question.end - 4..)?);
        Some([&writer.header, writer.body.as_slice()].concat())
    }
}

/// The length that EDNS allows, if the rest of the message is its record and nothing else.
fn edns_len(message: &[u8], at: usize) -> Option<usize> {
    let is_opt = message.get(at) == Some(&0) && read_u16(message, at + 1) == Ok(types::OPT);
    let data = usize::from(read_u16(message, at + 9).ok()?);
    let allowed = usize::from(read_u16(message, at + 3).ok()?);
    (is_opt && message.len() == at + 11 + data).then_some(allowed)
}

fn record_counts(message: &[u8]) -> Result<[u16; 4], MalformedMessage> {
    Ok([
        read_u16(message, 4)?,
        read_u16(message, 6)?,
        read_u16(message, 8)?,
        read_u16(message, 10)?,
    ])
}

/// The answer to a message without any record. Its question is repeated if it can be read.
pub fn answer_without_records(message: &[u8], code: ResponseCode) -> Vec<u8> {
    let question = Query::read(message)
        .ok()
        .and_then(|query| message.get(query.question))
        .unwrap_or_default();
    let mut header = message.first_chunk().copied().unwrap_or([0; HEADER_LEN]);
    let asks_recursion = header[2] & 1;
    header[2] = 0x80 | (header[2] & 0x78) | asks_recursion;
    header[3] = 0x80 | code as u8;
    header[4..].fill(0);
    header[5] = u8::from(!question.is_empty());
    [&header, question].concat()
}

/// Whether this is an answer to what was asked: the same ID and the same question. A server that
/// could not read the question may leave it out.
pub fn is_answer(asked: &[u8], answer: &[u8]) -> bool {
    compare_question(asked, answer).unwrap_or(false)
}

fn compare_question(asked: &[u8], answer: &[u8]) -> Result<bool, MalformedMessage> {
    let flags = read_u16(answer, 2)?;
    let [questions, ..] = record_counts(answer)?;
    if id(asked) != id(answer) || flags & 0x8000 == 0 || answer.len() < HEADER_LEN {
        return Ok(false);
    }
    if questions == 0 {
        return Ok(flags & 0xf != 0);
    }
    let (mut here, mut there) = (HEADER_LEN, HEADER_LEN);
    let names = DomainName::read_at(asked, &mut here)? == DomainName::read_at(answer, &mut there)?;
    let kinds = asked.get(here..here + 4).ok_or(MalformedMessage)?
        == answer.get(there..there + 4).ok_or(MalformedMessage)?;
    Ok(questions == 1 && names && kinds)
}

/// An answer with other names.
#[derive(Clone, Debug)]
pub struct TranslatedAnswer {
    header: [u8; HEADER_LEN],
    /// Everything after the header.
    body: Vec<u8>,
    /// The questions, with which the body begins.
    questions: Vec<u8>,
    /// The record of EDNS.
    edns: Option<Vec<u8>>,
}

impl TranslatedAnswer {
    /// The whole message.
    pub fn whole_message(self) -> Vec<u8> {
        [&self.header, self.body.as_slice()].concat()
    }

    /// The message if it fits into this length, or else only its question, with the bit that says
    /// so: the client asks again over TCP.
    pub fn fitting_message(self, max_len: usize) -> Vec<u8> {
        if HEADER_LEN + self.body.len() <= max_len {
            return self.whole_message();
        }
        let mut header = self.header;
        header[2] |= 2;
        header[6..].fill(0);
        header[11] = u8::from(self.edns.is_some());
        [
            &header,
            self.questions.as_slice(),
            self.edns.as_deref().unwrap_or_default(),
        ]
        .concat()
    }
}

/// Replaces the names in an answer: of questions, of owners, and in the data of records that refer
/// to other names.
///
/// With `names`, the answer is about the last of them. It becomes the answer about the first one:
/// each name is an alias of the one after it.
pub fn translate_answer(
    answer: &[u8],
    names: &[DomainName],
    replace: impl Fn(&DomainName) -> Option<DomainName>,
) -> Result<TranslatedAnswer, MalformedMessage> {
    let [questions, records @ ..] = record_counts(answer)?;
    let mut writer = MessageWriter::new(answer)?;
    let mut at = HEADER_LEN;
    let read = |at: &mut usize| -> Result<DomainName, MalformedMessage> {
        let name = DomainName::read_at(answer, at)?;
        Ok(replace(&name).unwrap_or(name))
    };
    for _ in 0..questions {
        let asked = read(&mut at)?;
        writer.write_name(names.first().unwrap_or(&asked), true);
        writer.copy_bytes(answer, &mut at, 4)?;
    }
    let asked = writer.body.clone();
    writer.write_aliases(names, records[0])?;
    let mut edns = None;
    for _ in 0..records.iter().map(|count| u32::from(*count)).sum::<u32>() {
        let begin = writer.body.len();
        writer.write_name(&read(&mut at)?, true);
        let kind = read_u16(answer, at)?;
        writer.copy_bytes(answer, &mut at, 8)?;
        let end = at + 2 + usize::from(read_u16(answer, at)?);
        let length_at = writer.body.len();
        writer.copy_bytes(answer, &mut at, 2)?;
        // How many bytes are before the names, how many names there are, and whether they may be
        // compressed (RFC 3597, section 4).
        let (before, names, compress) = match kind {
            types::NS | types::CNAME | types::PTR => (0, 1, true),
            types::DNAME => (0, 1, false),
            types::MX => (2, 1, true),
            types::SRV => (6, 1, false),
            types::SOA => (0, 2, true),
            _ => (0, 0, false),
        };
        writer.copy_bytes(answer, &mut at, before)?;
        for _ in 0..names {
            writer.write_name(&read(&mut at)?, compress);
        }
        let rest = end.checked_sub(at).ok_or(MalformedMessage)?;
        writer.copy_bytes(answer, &mut at, rest)?;
        writer.set_data_len(length_at)?;
        if writer.len() > usize::from(u16::MAX) {
            return Err(MalformedMessage);
        }
        if kind == types::OPT {
            edns = writer.body.get(begin..).map(<[u8]>::to_vec);
        }
    }
    Ok(TranslatedAnswer {
        header: writer.header,
        body: writer.body,
        questions: asked,
        edns,
    })
}

/// Writes a message with compressed names.
struct MessageWriter {
    header: [u8; HEADER_LEN],
    /// Everything after the header.
    body: Vec<u8>,
    /// Positions of the ends of names: labels with their lengths, in lower case.
    known: HashMap<Vec<u8>, u16>,
}

impl MessageWriter {
    /// A message with the header of this one.
    fn new(message: &[u8]) -> Result<Self, MalformedMessage> {
        let header = *message.first_chunk().ok_or(MalformedMessage)?;
        Ok(Self {
            header,
            body: Vec::new(),
            known: HashMap::new(),
        })
    }

    fn len(&self) -> usize {
        HEADER_LEN + self.body.len()
    }

    fn write_name(&mut self, name: &DomainName, compress: bool) {
        let mut rest = name.0.as_slice();
        while let [label, shorter @ ..] = rest {
            // Lengths are less than the code of any letter, so they stay.
            let lower = rest
                .iter()
                .flat_map(|label| with_length(label))
                .collect::<Vec<u8>>()
                .to_ascii_lowercase();
            let pointer = self.known.get(&lower);
            if let Some(pointer) = pointer.filter(|_| compress) {
                self.body
                    .extend_from_slice(&(0xc000 | pointer).to_be_bytes());
                return;
            }
            let here = u16::try_from(self.len())
                .ok()
                .filter(|here| usize::from(*here) <= MAX_POINTER);
            if let Some(here) = here.filter(|_| pointer.is_none()) {
                self.known.insert(lower, here);
            }
            self.body.extend(with_length(label));
            rest = shorter;
        }
        self.body.push(0);
    }

    /// Writes that each of these names is an alias of the next, as the first of the answers, which
    /// were this many.
    fn write_aliases(
        &mut self,
        names: &[DomainName],
        answers: u16,
    ) -> Result<(), MalformedMessage> {
        let added = u16::try_from(names.len().saturating_sub(1)).map_err(|_| MalformedMessage)?;
        if added == 0 {
            return Ok(());
        }
        self.header[6..8].copy_from_slice(
            &answers
                .checked_add(added)
                .ok_or(MalformedMessage)?
                .to_be_bytes(),
        );
        // No server of the internet vouches for these records.
        self.header[3] &= !AUTHENTIC_DATA;
        for (alias, target) in names.iter().zip(names.iter().skip(1)) {
            self.write_name(alias, true);
            for field in [types::CNAME, IN] {
                self.body.extend_from_slice(&field.to_be_bytes());
            }
            self.body.extend_from_slice(&ALIAS_TTL.to_be_bytes());
            let length_at = self.body.len();
            self.body.extend_from_slice(&[0, 0]);
            self.write_name(target, true);
            self.set_data_len(length_at)?;
        }
        Ok(())
    }

    fn copy_bytes(
        &mut self,
        message: &[u8],
        at: &mut usize,
        length: usize,
    ) -> Result<(), MalformedMessage> {
        self.body
            .extend_from_slice(message.get(*at..*at + length).ok_or(MalformedMessage)?);
        *at += length;
        Ok(())
    }

    /// Writes the length of a record's data, which ends here, into the two bytes before that data.
    fn set_data_len(&mut self, length_at: usize) -> Result<(), MalformedMessage> {
        let (length, data) = self
            .body
            .get_mut(length_at..)
            .and_then(<[u8]>::split_first_chunk_mut)
            .ok_or(MalformedMessage)?;
        *length = u16::try_from(data.len())
            .map_err(|_| MalformedMessage)?
            .to_be_bytes();
        Ok(())
    }
}

/// A label as messages contain it, after its length.
fn with_length(label: &[u8]) -> impl Iterator<Item = u8> {
    // Labels have at most 63 bytes.
    let length = u8::try_from(label.len()).unwrap_or_default();
    std::iter::once(length).chain(label.iter().copied())
}

#[cfg(test)]
pub(crate) mod tests;
