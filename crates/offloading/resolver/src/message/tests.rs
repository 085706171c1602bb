use liqo_byte_mutations::mutated;
use proptest::prelude::*;

use super::*;

/// Builds messages.
pub struct Builder(Vec<u8>);

impl Builder {
    pub fn new(id: u16, flags: u16, counts: [u16; 4]) -> Self {
        let words = [id, flags].into_iter().chain(counts);
        Self(words.flat_map(u16::to_be_bytes).collect())
    }

    pub fn name(mut self, text: &str) -> Self {
        for label in text.split('.').filter(|label| !label.is_empty()) {
            self.0.push(u8::try_from(label.len()).unwrap());
            self.0.extend_from_slice(label.as_bytes());
        }
        self.0.push(0);
        self
    }

    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub fn question(self, name: &str, kind: u16) -> Self {
        self.name(name).bytes(&kind.to_be_bytes()).bytes(&[0, 1])
    }

    /// A record of the class IN with a time to live of 5 s.
    pub fn record(self, name: &str, kind: u16, data: &[u8]) -> Self {
        self.name(name).data(kind, data)
    }

    /// The rest of a record after its owner.
    fn data(self, kind: u16, data: &[u8]) -> Self {
        let length = u16::try_from(data.len()).unwrap();
        self.bytes(&kind.to_be_bytes())
            .bytes(&[0, 1, 0, 0, 0, 5])
            .bytes(&length.to_be_bytes())
            .bytes(data)
    }

    /// EDNS with this size, the bit DO, and an option.
    pub fn edns(self, size: u16) -> Self {
        self.bytes(&[0, 0, 41])
            .bytes(&size.to_be_bytes())
            .bytes(&[0, 0, 0x80, 0, 0, 6, 0, 10, 0, 2, 7, 7])
    }

    pub fn done(self) -> Vec<u8> {
        self.0
    }
}

pub fn name(text: &str) -> DomainName {
    DomainName::parse(text).unwrap()
}

fn wire(text: &str) -> Vec<u8> {
    Builder(Vec::new()).name(text).done()
}

/// `long` is `short` at home.
fn home(name: &DomainName) -> Option<DomainName> {
    let index = name
        .labels()
        .iter()
        .position(|label| label.eq_ignore_ascii_case(b"long-name"))?;
    name.with_label(index, "short")
}

fn translated(answer: &[u8]) -> Vec<u8> {
    translate_answer(answer, &[], home).unwrap().whole_message()
}

#[test]
fn a_question_with_another_name_keeps_everything_else() {
    let asked = Builder::new(7, 0x0120, [1, 0, 0, 1])
        .question("web.short.x", 28)
        .edns(1232)
        .done();
    let query = Query::read(&asked).unwrap();
    assert_eq!(
        (
            query.name.clone(),
            query.kind,
            query.is_simple,
            query.udp_len
        ),
        (name("WEB.short.x"), 28, true, 1232)
    );
    let wanted = Builder::new(7, 0x0120, [1, 0, 0, 1])
        .question("web.long-name.x", 28)
        .edns(1232)
        .done();
    assert_eq!(
        query.with_name(&asked, &name("web.long-name.x")),
        Some(wanted)
    );
    let plain = Builder::new(7, 0x0100, [1, 0, 0, 0])
        .question("a", 1)
        .done();
    assert_eq!(
        Query::read(&plain)
            .map(|query| (query.is_simple, query.udp_len))
            .unwrap(),
        (true, 512)
    );
    let small = Builder::new(7, 0x0100, [1, 0, 0, 1])
        .question("a", 1)
        .edns(100)
        .done();
    assert_eq!(
        Query::read(&small).unwrap().udp_len,
        512,
        "RFC 6891, section 6.2.5"
    );
}

#[test]
fn a_question_allows_answers_of_at_most_4096_bytes() {
    let asked = |allowed| {
        Builder::new(7, 0x0120, [1, 0, 0, 1])
            .question("web.x", 1)
            .edns(allowed)
            .done()
    };
    for (allowed, capped) in [
        (100, 100),
        (512, 512),
        (4096, 4096),
        (4097, 4096),
        (u16::MAX, 4096),
    ] {
        let query = Query::read(&asked(allowed)).unwrap();
        assert_eq!(query.with_capped_size(&asked(allowed)), asked(capped));
        assert_eq!(query.udp_len, usize::from(capped.max(512)));
    }
    let plain = Builder::new(7, 0x0100, [1, 0, 0, 0])
        .question("web.x", 1)
        .done();
    assert_eq!(Query::read(&plain).unwrap().with_capped_size(&plain), plain);
    let two = Builder::new(7, 0, [1, 0, 0, 2])
        .question("a", 1)
        .edns(u16::MAX)
        .edns(512)
        .done();
    let query = Query::read(&two).unwrap();
    assert_eq!(
        (query.with_capped_size(&two), query.udp_len),
        (two, 4096),
        "a signed question must stay as it is"
    );
}

#[test]
fn a_question_with_more_than_edns_is_not_simple() {
    let signed = Builder::new(7, 0, [1, 0, 0, 1])
        .question("a", 1)
        .record("key", 250, &[1, 2])
        .done();
    let two = Builder::new(7, 0, [1, 0, 0, 2])
        .question("a", 1)
        .edns(512)
        .edns(512)
        .done();
    let trailing = Builder::new(7, 0, [1, 0, 0, 0])
        .question("a", 1)
        .bytes(&[1])
        .done();
    for message in [signed, two, trailing] {
        assert!(!Query::read(&message).unwrap().is_simple, "{message:?}");
    }
}

#[test]
fn what_is_no_question_gets_an_error_or_nothing() {
    let fault = |message: &[u8]| Query::read(message).unwrap_err();
    let format = QueryFault::Answer(ResponseCode::FormatError);
    for message in [&b""[..], &[0; 3], &[0; 11]] {
        assert_eq!(fault(message), QueryFault::Drop);
    }
    assert_eq!(
        fault(
            &Builder::new(7, 0x8000, [1, 0, 0, 0])
                .question("a", 1)
                .done()
        ),
        QueryFault::Drop,
        "an answer"
    );
    assert_eq!(
        fault(
            &Builder::new(7, 0x2800, [1, 0, 0, 0])
                .question("a", 1)
                .done()
        ),
        QueryFault::Answer(ResponseCode::NotImplemented)
    );
    assert_eq!(fault(&Builder::new(7, 0, [0, 0, 0, 0]).done()), format);
    assert_eq!(
        fault(
            &Builder::new(7, 0, [2, 0, 0, 0])
                .question("a", 1)
                .question("b", 1)
                .done()
        ),
        format
    );
    assert_eq!(
        fault(
            &Builder::new(7, 0, [1, 1, 0, 0])
                .question("a", 1)
                .record("a", 1, &[1; 4])
                .done()
        ),
        format
    );
    for broken in [
        &b"\x03ab"[..],
        b"\xc0\x0c",
        b"\xc0\xff\0\0",
        b"\x40\0\0\0\0",
        b"\x01a\0\0\x01\0",
        b"",
    ] {
        assert_eq!(
            fault(&Builder::new(7, 0, [1, 0, 0, 0]).bytes(broken).done()),
            format,
            "{broken:?}"
        );
    }
    let long = "a.".repeat(128);
    assert_eq!(
        fault(&Builder::new(7, 0, [1, 0, 0, 0]).question(&long, 1).done()),
        format
    );
    let asked = Builder::new(7, 0x0100, [1, 0, 0, 1])
        .question("a", 1)
        .edns(512)
        .done();
    let answer = answer_without_records(&asked, ResponseCode::ServerFailure);
    assert_eq!(
        answer,
        Builder::new(7, 0x8182, [1, 0, 0, 0])
            .question("a", 1)
            .done()
    );
    assert_eq!(
        answer_without_records(
            &Builder::new(7, 0, [2, 0, 0, 0]).done(),
            ResponseCode::FormatError
        ),
        Builder::new(7, 0x8081, [0; 4]).done()
    );
}

#[test]
fn names_in_all_parts_of_an_answer_are_replaced() {
    let soa = |name: &str| [wire(name), wire("mail.x"), vec![9; 20]].concat();
    let srv = |name: &str| [vec![0, 1, 0, 2, 0, 80], wire(name)].concat();
    let answer = |ns: &str| {
        let own = |host: &str| format!("{host}.{ns}.x");
        Builder::new(7, 0x8580, [1, 6, 1, 2])
            .question(&own("web"), 255)
            .record(&own("web"), 1, &[10, 0, 0, 1])
            .record(&own("web"), 5, &wire(&own("db")))
            .record(&own("_http._tcp.web"), 33, &srv(&own("web-0")))
            .record("1.in-addr.arpa", 12, &wire(&own("web-0.web")))
            .record(&own("web"), 15, &[vec![0, 5], wire(&own("mail"))].concat())
            // The data of an unknown type is not read.
            .record(&own("web"), 65280, &wire("web.long-name.x"))
            .record("x", 6, &soa(&own("dns")))
            .record(&own("web-0"), 28, &[1; 16])
            .edns(1232)
            .done()
    };
    let found = translated(&answer("long-name"));
    assert_eq!(expanded(&found), expanded(&answer("short")));
    assert!(found.len() < answer("short").len(), "names are compressed");
}

/// The same message without compression.
fn expanded(message: &[u8]) -> Vec<Vec<u8>> {
    let [questions, records @ ..] = record_counts(message).unwrap();
    let mut at = HEADER_LEN;
    let mut parts = vec![message[..HEADER_LEN].to_vec()];
    let read = |at: &mut usize| {
        DomainName::read_at(message, at)
            .unwrap()
            .labels()
            .join(&b'.')
            .to_ascii_lowercase()
    };
    for _ in 0..questions {
        parts.push(read(&mut at));
        at += 4;
    }
    for _ in 0..records.iter().sum::<u16>() {
        parts.push(read(&mut at));
        let kind = read_u16(message, at).unwrap();
        parts.push(message[at..at + 8].to_vec());
        let end = at + 10 + usize::from(read_u16(message, at + 8).unwrap());
        at += 10;
        let (before, names) = match kind {
            2 | 5 | 12 => (0, 1),
            15 => (2, 1),
            33 => (6, 1),
            6 => (0, 2),
            _ => (0, 0),
        };
        at += before;
        parts.extend((0..names).map(|_| read(&mut at)));
        parts.push(message[at..end].to_vec());
        at = end;
    }
    assert_eq!(at, message.len());
    parts
}

#[test]
fn compressed_names_are_read_and_written() {
    // The question is at 12, and `long-name.x` at 16.
    let answer = Builder::new(7, 0x8180, [1, 2, 0, 0])
        .question("web.long-name.x", 1)
        .bytes(&[0xc0, 12])
        .data(5, &[2, b'd', b'b', 0xc0, 16])
        .bytes(&[2, b'd', b'b', 0xc0, 16])
        .data(1, &[10, 0, 0, 1])
        .done();
    let wanted = Builder::new(7, 0x8180, [1, 2, 0, 0])
        .question("web.short.x", 1)
        .bytes(&[0xc0, 12])
        .data(5, &[2, b'd', b'b', 0xc0, 16])
        // After the question (17 bytes), the pointer and the head of the first record.
        .bytes(&[0xc0, 41])
        .data(1, &[10, 0, 0, 1])
        .done();
    assert_eq!(translated(&answer), wanted);
}

#[test]
fn a_name_has_at_most_127_pointers() {
    // The root at 12, and then pointers, each to the one before it.
    let chained = |pointers: usize| {
        let chain = (0..pointers).flat_map(|index| {
            let to = if index == 0 {
                HEADER_LEN
            } else {
                HEADER_LEN + 2 * index - 1
            };
            u16::try_from(0xc000 | to).unwrap().to_be_bytes()
        });
        let message: Vec<u8> = [0; HEADER_LEN + 1].into_iter().chain(chain).collect();
        let mut at = message.len() - 2;
        DomainName::read_at(&message, &mut at)
    };
    assert_eq!(chained(MAX_POINTERS), Ok(DomainName(Vec::new())));
    assert_eq!(chained(MAX_POINTERS + 1), Err(MalformedMessage));
}

#[test]
fn names_are_compressed_only_by_what_pointers_reach() {
    let long = format!("{0}.{0}.{0}.x", "a".repeat(60));
    let mut writer = MessageWriter::new(&[0; HEADER_LEN]).unwrap();
    writer.body = vec![0; MAX_POINTER - 1 - HEADER_LEN];
    writer.write_name(&name("A.b"), true);
    // `b` is out of reach.
    writer.write_name(&name("a.B"), true);
    writer.write_name(&name("c.b"), true);
    assert_eq!(
        writer.body[MAX_POINTER - 1 - HEADER_LEN..],
        *b"\x01A\x01b\0\xff\xfe\x01c\x01b\0"
    );
    assert_eq!(writer.known.len(), 1);
    // Without compression, a name is still known to those after it.
    let mut writer = MessageWriter::new(&[0; HEADER_LEN]).unwrap();
    writer.write_name(&name(&long), false);
    writer.write_name(&name(&long), false);
    writer.write_name(&name("x"), true);
    assert_eq!(writer.body.len(), 2 * name(&long).wire_len() + 2);
    assert_eq!(writer.body[writer.body.len() - 2..], [0xc0, 12 + 183]);
}

#[test]
fn names_of_addresses_are_known() {
    let reverse = ["7.0.244.10.in-addr.arpa", "1.0.IP6.Arpa", "in-addr.arpa"];
    assert!(reverse.iter().all(|text| name(text).is_reverse()));
    let others = [
        "arpa",
        "x.arpa",
        "in-addr.arpa.example.org",
        "in-addr",
        "_http._tcp.web.demo.svc.cluster.local",
    ];
    assert!(!others.iter().any(|text| name(text).is_reverse()));
}

#[test]
fn an_answer_that_no_longer_fits_is_cut_off_at_its_question_and_says_so() {
    let answer = Builder::new(7, 0x8180, [1, 1, 0, 1])
        .question("web.long-name.x", 1)
        .record("y", 16, &[5; 600])
        .edns(1232)
        .done();
    let translated = translate_answer(&answer, &[], home).unwrap();
    assert_eq!(
        translated.clone().fitting_message(1232),
        translated.clone().whole_message()
    );
    let short = Builder::new(7, 0x8380, [1, 0, 0, 1])
        .question("web.short.x", 1)
        .edns(1232)
        .done();
    assert_eq!(translated.fitting_message(512), short);
}

#[test]
fn malformed_answers_are_errors() {
    let head = || Builder::new(7, 0x8180, [0, 1, 0, 0]);
    for message in [
        head().done(),
        head().name("a").done(),
        head()
            .name("a")
            .bytes(&[0, 1, 0, 1, 0, 0, 0, 0, 0, 9, 1])
            .done(),
        // A name that is longer than its record, and one that points at itself.
        head().name("a").data(5, &[5, b'a']).done(),
        head().name("a").data(5, &[0xc0, 25]).done(),
        head().name("a").data(33, &[1]).done(),
        Builder::new(7, 0x8180, [9, 0, 0, 0])
            .question("a", 1)
            .done(),
    ] {
        assert!(
            translate_answer(&message, &[], home).is_err(),
            "{message:?}"
        );
    }
}

#[test]
fn an_answer_that_grows_beyond_a_message_is_an_error() {
    // Targets of SRV are written in full: 20 bytes become 260.
    let long = format!("{0}.{0}.{0}.long-name.x", "a".repeat(60));
    let mut answer = Builder::new(7, 0x8180, [1, 3000, 0, 0]).question(&long, 1);
    for _ in 0..3000 {
        answer = answer
            .bytes(&[0xc0, 12])
            .data(33, &[0, 0, 0, 0, 0, 1, 0xc0, 12]);
    }
    assert!(translate_answer(&answer.done(), &[], home).is_err());
}

#[test]
fn only_the_answer_to_the_same_question_counts() {
    let asked = Builder::new(7, 0x0100, [1, 0, 0, 1])
        .question("web.x", 1)
        .edns(512)
        .done();
    let answer = |id, flags, name, kind| {
        Builder::new(id, flags, [1, 0, 0, 0])
            .question(name, kind)
            .done()
    };
    assert!(
        is_answer(&asked, &answer(7, 0x8180, "web.x", 1))
            && is_answer(&asked, &answer(7, 0x8183, "WEB.X", 1))
    );
    for other in [
        answer(8, 0x8180, "web.x", 1),
        answer(7, 0x0100, "web.x", 1),
        answer(7, 0x8180, "db.x", 1),
        answer(7, 0x8180, "web.x", 28),
    ] {
        assert!(!is_answer(&asked, &other), "{other:?}");
    }
    assert!(
        is_answer(&asked, &Builder::new(7, 0x8181, [0; 4]).done()),
        "the server could not read the question"
    );
    assert!(
        !is_answer(&asked, &Builder::new(7, 0x8180, [0; 4]).done())
            && !is_answer(&asked, b"\0\x07")
    );
}

#[test]
fn names_have_limits() {
    assert!(
        DomainName::parse("").is_none()
            && DomainName::parse("a..b").is_none()
            && DomainName::parse(&"a".repeat(64)).is_none()
    );
    assert!(
        DomainName::parse(&"a.".repeat(127)).is_some()
            && DomainName::parse(&"a.".repeat(128)).is_none()
    );
    assert_eq!(name("Web.Demo."), name("web.demo"));
    assert!(name("web.demo").with_label(0, &"a".repeat(64)).is_none());
}

#[test]
fn a_name_gets_another_end() {
    let moved = |end: &str| name("Web.demo.svc.Corp.local").with_end(3, &name(end));
    assert_eq!(
        moved("cluster.local").labels(),
        name("Web.demo.svc.cluster.local").labels()
    );
    assert_eq!(
        moved("corp.local").labels(),
        name("Web.demo.svc.Corp.local").labels(),
        "upper and lower case stay"
    );
    assert_eq!(moved("local").labels(), name("Web.demo.svc.local").labels());
}

#[test]
fn an_alias_comes_before_what_it_stands_for() {
    let answer = Builder::new(7, 0x81a0, [1, 1, 0, 1]).question("db.example.org", 1);
    let answer = answer
        .record("db.example.org", 1, &[192, 0, 2, 1])
        .edns(1232)
        .done();
    let names = [name("db.demo"), name("other.demo"), name("db.example.org")];
    let found = translate_answer(&answer, &names, |_| None).unwrap();
    let wanted = Builder::new(7, 0x8180, [1, 3, 0, 1]).question("db.demo", 1);
    let wanted = wanted.record("db.demo", 5, &wire("other.demo")).record(
        "other.demo",
        5,
        &wire("db.example.org"),
    );
    let wanted = wanted
        .record("db.example.org", 1, &[192, 0, 2, 1])
        .edns(1232)
        .done();
    assert_eq!(expanded(&found.clone().whole_message()), expanded(&wanted));
    let short = Builder::new(7, 0x8380, [1, 0, 0, 1])
        .question("db.demo", 1)
        .edns(1232)
        .done();
    assert_eq!(found.fitting_message(60), short, "all of it comes over TCP");
    // The header of an answer that does not exist yet says how many answers there are.
    let full = Builder::new(7, 0x8180, [0, u16::MAX, 0, 0]).done();
    assert!(translate_answer(&full, &names, |_| None).is_err());
}

proptest! {
    #[test]
    fn no_message_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), questions in 0..3_u8, records in 0..9_u8) {
        let mut message = bytes;
        if message.len() >= HEADER_LEN {
            message[2] &= 0x07;
            message[4..HEADER_LEN].copy_from_slice(&[0, questions, 0, records, 0, 0, 0, 1]);
        }
        let _ = translate_answer(&message, &[], home).map(|translated| translated.fitting_message(20));
        if let Ok(query) = Query::read(&message) {
            let _ = query.with_name(&message, &name("a.b"));
        }
        prop_assert!(answer_without_records(&message, ResponseCode::FormatError).len() >= HEADER_LEN);
        let _ = is_answer(&message, &message);
    }

    #[test]
    fn an_answer_without_such_names_means_the_same(hosts in proptest::collection::vec("[a-z]{1,9}(\\.[a-z]{1,9}){0,4}", 1..9)) {
        let mut message = Builder::new(7, 0x8180, [1, u16::try_from(hosts.len()).unwrap(), 0, 0]).question(&hosts[0], 1);
        for host in &hosts {
            message = message.record(host, 5, &wire(&hosts[0]));
        }
        let message = message.done();
        prop_assert_eq!(expanded(&translated(&message)), expanded(&message));
    }

    #[test]
    fn a_mutated_question_is_refused_or_asked_with_another_name(bytes in mutated(Just(valid_question()))) {
        match Query::read(&bytes) {
            Ok(query) => {
                let renamed = query.with_name(&bytes, &name("web.demo.svc.cluster.local")).unwrap();
                let read = Query::read(&renamed).map(|query| (query.name, query.kind, query.is_simple));
                prop_assert_eq!(read, Ok((name("web.demo.svc.cluster.local"), query.kind, query.is_simple)));
                prop_assert_eq!(query.with_capped_size(&bytes).len(), bytes.len());
                prop_assert!((512..=4096).contains(&query.udp_len));
            }
            Err(QueryFault::Drop) => {}
            Err(QueryFault::Answer(code)) => prop_assert!(answer_without_records(&bytes, code).len() <= bytes.len().max(HEADER_LEN)),
        }
    }

    #[test]
    fn a_mutated_answer_is_refused_or_translated_to_one_that_can_be_read(bytes in mutated(Just(valid_answer())), aliases in 0..3_usize) {
        let names = [name("db.demo"), name("other.demo"), name("db.example.org")];
        if let Ok(translated) = translate_answer(&bytes, &names[..aliases], home) {
            prop_assert!(translated.clone().fitting_message(512).len() <= 512 + MAX_NAME_LEN + usize::from(u16::MAX));
            let whole = translated.whole_message();
            prop_assert!(whole.len() <= 2 * usize::from(u16::MAX));
            prop_assert!(translate_answer(&whole, &[], |_| None).is_ok(), "{:?}", whole);
        }
        let _ = is_answer(&valid_question(), &bytes);
    }
}

fn valid_question() -> Vec<u8> {
    Builder::new(7, 0x0120, [1, 0, 0, 1])
        .question("web.short.x", 28)
        .edns(1232)
        .done()
}

/// With a record of each type that has names in its data.
fn valid_answer() -> Vec<u8> {
    let soa = [wire("ns.x"), wire("mail.x"), vec![9; 20]].concat();
    let answer = Builder::new(7, 0x8180, [1, 6, 1, 1]).question("web.long-name.x", 28);
    let answer = answer
        .record("web.long-name.x", types::CNAME, &wire("db.long-name.x"))
        .bytes(&[0xc0, 12])
        .data(28, &[1; 16]);
    let answer = answer.record("a.x", types::MX, &[&[0, 1][..], &wire("b.x")].concat());
    let answer = answer.record(
        "a.x",
        types::SRV,
        &[&[0; 6][..], &wire("c.long-name.x")].concat(),
    );
    let answer = answer
        .record("a.x", types::PTR, &[0xc0, 12])
        .record("a.x", 16, &[3; 40]);
    answer.record("x", types::SOA, &soa).edns(1232).done()
}
