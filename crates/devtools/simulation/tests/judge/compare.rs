//! Compares two answers, except what each server chooses itself: UIDs, versions, times, generated
//! names, addresses and tokens.
//!
//! Each UID, name and version of one server must always stand for the same one of the other.
//! Versions must have the same order.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};

use jiff::Timestamp;
use serde_json::{Map, Value, json};

/// The longest time between the clocks, or between the moments at which both servers see a request.
const MAX_CLOCK_DIFFERENCE_SECONDS: i64 = 20;

/// A place where two answers differ.
#[derive(Clone, Debug)]
pub struct Difference {
    /// Steps from the answer, separated by slashes; `*` for elements of a list.
    pub path: String,
    pub real: Option<Value>,
    pub simulated: Option<Value>,
    pub note: &'static str,
}

/// What stands for what at the other server, in one sequence.
#[derive(Default)]
pub struct Dictionary {
    uids: Pairs,
    names: Pairs,
    versions: BTreeMap<u64, u64>,
    versions_back: BTreeMap<u64, u64>,
}

#[derive(Default)]
struct Pairs {
    forth: HashMap<String, String>,
    back: HashMap<String, String>,
}

impl Pairs {
    /// Whether both are new, or known as a pair.
    fn add(&mut self, real: &str, simulated: &str) -> bool {
        let (forth, back) = (self.forth.get(real), self.back.get(simulated));
        if forth.is_none() && back.is_none() {
            self.forth.insert(real.to_owned(), simulated.to_owned());
            self.back.insert(simulated.to_owned(), real.to_owned());
            return true;
        }
        forth.is_some_and(|known| known == simulated)
    }
}

impl Dictionary {
    /// Learns a generated name.
    pub fn add_name(&mut self, real: &str, simulated: &str) {
        self.names.add(real, simulated);
    }

    fn add_version(&mut self, real: u64, simulated: u64) -> bool {
        if let Some(known) = self.versions.get(&real) {
            return *known == simulated;
        }
        if self.versions_back.contains_key(&simulated) {
            return false;
        }
        let before = self
            .versions
            .range(..real)
            .next_back()
            .is_none_or(|(_, known)| *known < simulated);
        let after = self
            .versions
            .range(real..)
            .next()
            .is_none_or(|(_, known)| *known > simulated);
        if before && after {
            self.versions.insert(real, simulated);
            self.versions_back.insert(simulated, real);
        }
        before && after
    }

    /// The text that the simulated server would have written instead.
    fn translate(&self, text: &str) -> String {
        let mut translated = text.to_owned();
        for (real, simulated) in self.uids.forth.iter().chain(&self.names.forth) {
            if translated.contains(real.as_str()) {
                translated = translated.replace(real.as_str(), simulated);
            }
        }
        translated
    }
}

/// The differences between two answers.
pub fn compare(dictionary: &mut Dictionary, real: &Value, simulated: &Value) -> Vec<Difference> {
    if real["code"] != simulated["code"] {
        let outcome = |answer: &Value| json!({ "code": answer["code"], "message": answer["body"]["message"] });
        let (real, simulated) = (Some(outcome(real)), Some(outcome(simulated)));
        return vec![Difference {
            path: "code".to_owned(),
            real,
            simulated,
            note: "the rest is not compared",
        }];
    }
    let mut walk = Walk {
        dictionary,
        path: Vec::new(),
        found: Vec::new(),
    };
    walk.collect_uids(real, simulated);
    walk.values(real, simulated);
    walk.found
}

/// The volume with a pod's token: the server draws the end of its name.
fn is_token_volume(text: &str) -> bool {
    text.starts_with("kube-api-access-")
}

struct Walk<'a> {
    dictionary: &'a mut Dictionary,
    path: Vec<String>,
    found: Vec<Difference>,
}

impl Walk<'_> {
    /// UIDs first: they also occur in texts that come before them.
    fn collect_uids(&mut self, real: &Value, simulated: &Value) {
        match (real, simulated) {
            (Value::Object(real), Value::Object(simulated)) => {
                for (key, value) in real {
                    if let Some(other) = simulated.get(key) {
                        self.collect_uids(value, other);
                    }
                }
            }
            (Value::Array(real), Value::Array(simulated)) if real.len() == simulated.len() => {
                real.iter()
                    .zip(simulated)
                    .for_each(|(real, simulated)| self.collect_uids(real, simulated));
            }
            (Value::String(real), Value::String(simulated))
                if is_uid(real) && is_uid(simulated) =>
            {
                self.dictionary.uids.add(real, simulated);
            }
            (Value::String(real), Value::String(simulated))
                if is_token_volume(real) && is_token_volume(simulated) =>
            {
                self.dictionary.add_name(real, simulated);
            }
            _ => {}
        }
    }

    fn values(&mut self, real: &Value, simulated: &Value) {
        match (real, simulated) {
            // Which cache of the real server answers decides how it writes an empty list.
            (Value::Null, Value::Array(simulated))
                if simulated.is_empty() && self.path == ["body", "items"] => {}
            _ if real["status"] == "Failure" && simulated["status"] == "Failure" => {
                let is_message_read = is_message_read(real);
                self.values(
                    &essence(real, is_message_read),
                    &essence(simulated, is_message_read),
                );
            }
            (Value::Object(real), Value::Object(simulated)) => self.objects(real, simulated),
            (Value::Array(real), Value::Array(simulated)) => self.arrays(real, simulated),
            _ => {
                if let Err(note) = self.leaves(real, simulated) {
                    self.add(Some(real), Some(simulated), note);
                }
            }
        }
    }

    fn objects(&mut self, real: &Map<String, Value>, simulated: &Map<String, Value>) {
        let mut known = BTreeSet::new();
        for (key, value) in real {
            let other_key = if simulated.contains_key(key) {
                key.clone()
            } else {
                self.dictionary.translate(key)
            };
            self.path.push(key.clone());
            match simulated.get(&other_key) {
                Some(other) if key == "resourceVersion" => self.version(value, other, real),
                Some(other) => self.values(value, other),
                // Lists of custom kinds have it from some of the real server's caches.
                None if key == "continue" && value == "" => {}
                None => self.add(Some(value), None, "the simulated one lacks it"),
            }
            self.path.pop();
            known.insert(other_key);
        }
        for (key, value) in simulated.iter().filter(|(key, _)| !known.contains(*key)) {
            self.path.push(key.clone());
            self.add(None, Some(value), "only the simulated one has it");
            self.path.pop();
        }
    }

    fn arrays(&mut self, real: &[Value], simulated: &[Value]) {
        let (real, simulated) = (self.in_order(real), self.in_order(simulated));
        if real.len() != simulated.len() {
            return self.add(
                Some(&real.into()),
                Some(&simulated.into()),
                "not the same number",
            );
        }
        for (real, simulated) in real.iter().zip(&simulated) {
            self.path.push("*".to_owned());
            self.values(real, simulated);
            self.path.pop();
        }
    }

    /// Sorts lists whose order depends on the second.
    fn in_order(&self, list: &[Value]) -> Vec<Value> {
        let mut list = list.to_vec();
        let text =
            |entry: &Value, field: &str| entry[field].as_str().unwrap_or_default().to_owned();
        if self
            .path
            .last()
            .is_some_and(|field| field == "managedFields")
        {
            list.sort_by_key(|entry| {
                ["manager", "operation", "apiVersion", "subresource"]
                    .map(|field| text(entry, field))
            });
        }
        list
    }

    /// Versions of objects must match those of the other server; those of lists may have grown by
    /// what others wrote.
    fn version(&mut self, real: &Value, simulated: &Value, parent: &Map<String, Value>) {
        let number = |value: &Value| value.as_str().and_then(|text| text.parse::<u64>().ok());
        let is_of_object = parent.contains_key("uid")
            && self
                .path
                .iter()
                .rev()
                .nth(1)
                .is_some_and(|key| key == "metadata");
        let is_same = match (number(real), number(simulated)) {
            (Some(real), Some(simulated)) if is_of_object => {
                self.dictionary.add_version(real, simulated)
            }
            (Some(_), Some(_)) => true,
            _ => real == simulated,
        };
        if !is_same {
            let known = number(real).and_then(|real| self.dictionary.versions.get(&real).copied());
            let note = "versions of objects do not correspond: one server wrote where the other did not, or in another order";
            self.add(
                Some(&json!({ "version": real, "expected": known })),
                Some(simulated),
                note,
            );
        }
    }

    fn leaves(&mut self, real: &Value, simulated: &Value) -> Result<(), &'static str> {
        if let (Some(real), Some(simulated)) = (real.as_str(), simulated.as_str())
            && is_uid(real)
            && is_uid(simulated)
        {
            let is_known = self.dictionary.uids.add(real, simulated);
            return if is_known {
                Ok(())
            } else {
                Err("these two UIDs do not stand for each other")
            };
        }
        if real == simulated {
            return Ok(());
        }
        let key = self
            .path
            .iter()
            .rev()
            .find(|key| *key != "*")
            .map_or("", String::as_str);
        if let (Some(real), Some(simulated)) = (real.as_u64(), simulated.as_u64()) {
            let is_port = |port: u64| (30000..=32767).contains(&port);
            let is_chosen = matches!(key, "nodePort" | "healthCheckNodePort")
                && is_port(real)
                && is_port(simulated);
            return if is_chosen { Ok(()) } else { Err("") };
        }
        let (Some(real), Some(simulated)) = (real.as_str(), simulated.as_str()) else {
            return Err("");
        };
        let is_corresponding = match key {
            "continue" | "resourceVersion" => !real.is_empty() && !simulated.is_empty(),
            "clusterIP" | "clusterIPs" => are_addresses(real, simulated),
            "token" => real.matches('.').count() == 2 && simulated.matches('.').count() == 2,
            _ => false,
        };
        if is_corresponding {
            Ok(())
        } else if is_time(real) && is_time(simulated) {
            if are_close_times(real, simulated) {
                Ok(())
            } else {
                Err("times of another form, or too far from each other")
            }
        } else if self.dictionary.translate(real) == simulated {
            Ok(())
        } else {
            Err("")
        }
    }

    fn add(&mut self, real: Option<&Value>, simulated: Option<&Value>, note: &'static str) {
        let (path, real, simulated) = (self.path.join("/"), real.cloned(), simulated.cloned());
        self.found.push(Difference {
            path,
            real,
            simulated,
            note,
        });
    }
}

/// What clients read of a refusal: its code, its reason, and its causes in any order. Few read
/// more.
fn essence(status: &Value, is_message_read: bool) -> Value {
    let details = &status["details"];
    let causes = || details["causes"].as_array().into_iter().flatten();
    let unordered: BTreeSet<String> = causes()
        .map(|cause| format!("{} {}", cause["reason"], cause["field"]))
        .collect();
    let mut essence =
        json!({ "code": status["code"], "reason": status["reason"], "causes": unordered });
    if status["code"] == 404 {
        essence["name"] = details["name"].clone();
    }
    if is_message_read {
        let messages: Vec<&Value> = causes().map(|cause| &cause["message"]).collect();
        essence["message"] = json!([status["message"], messages, details["retryAfterSeconds"]]);
    }
    essence
}

/// Whether Liqo reads the message of a refusal, or shows it to its users.
fn is_message_read(status: &Value) -> bool {
    let is_ending = status["details"]["causes"][0]["reason"] == "NamespaceTerminating";
    let lacks_account = status["message"]
        .as_str()
        .is_some_and(|text| text.contains("error looking up service account"));
    status["code"] == 429 || is_ending || lacks_account
}

fn is_uid(text: &str) -> bool {
    let parts: Vec<usize> = text.split('-').map(str::len).collect();
    parts == [8, 4, 4, 4, 12]
        && text
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

fn are_addresses(real: &str, simulated: &str) -> bool {
    let family = |text: &str| text.parse::<IpAddr>().ok().map(|address| address.is_ipv4());
    family(real).is_some() && family(real) == family(simulated)
}

fn is_time(text: &str) -> bool {
    text.parse::<Timestamp>().is_ok()
}

/// Times of the same form, at about the same moment.
fn are_close_times(real: &str, simulated: &str) -> bool {
    let (Ok(first), Ok(second)) = (real.parse::<Timestamp>(), simulated.parse::<Timestamp>())
    else {
        return false;
    };
    real.len() == simulated.len()
        && (first.as_second() - second.as_second()).abs() <= MAX_CLOCK_DIFFERENCE_SECONDS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(dictionary: &mut Dictionary, real: &Value, simulated: &Value) -> Vec<String> {
        compare(dictionary, real, simulated)
            .into_iter()
            .map(|difference| difference.path)
            .collect()
    }

    fn object(uid: char, version: u64, data: &str) -> Value {
        let uid = "11111111-2222-3333-4444-555555555555".replace('1', &uid.to_string());
        let times =
            json!([{ "manager": "m", "operation": "Update", "time": "2025-01-01T00:00:01Z" }]);
        json!({ "metadata": { "uid": uid, "resourceVersion": version.to_string(), "managedFields": times }, "data": data })
    }

    #[test]
    fn what_servers_choose_may_differ_if_it_always_corresponds() {
        let mut known = Dictionary::default();
        assert!(paths(&mut known, &object('a', 10, "x"), &object('b', 3, "x")).is_empty());
        assert!(paths(&mut known, &object('a', 12, "x"), &object('b', 4, "x")).is_empty());
        assert!(
            paths(&mut known, &object('a', 11, "x"), &object('a', 9, "x")).len() == 2,
            "another UID, and order"
        );
    }

    #[test]
    fn a_write_that_only_one_server_made_is_found() {
        let mut known = Dictionary::default();
        assert!(paths(&mut known, &object('a', 10, "x"), &object('b', 3, "x")).is_empty());
        assert_eq!(
            paths(&mut known, &object('a', 10, "x"), &object('b', 4, "x")),
            ["metadata/resourceVersion"]
        );
        assert_eq!(
            paths(&mut known, &object('a', 11, "x"), &object('b', 3, "x")),
            ["metadata/resourceVersion"]
        );
    }

    #[test]
    fn every_other_field_has_to_be_the_same() {
        let mut known = Dictionary::default();
        assert_eq!(
            paths(&mut known, &json!({ "a": 1 }), &json!({ "a": 2 })),
            ["a"]
        );
        assert_eq!(
            paths(&mut known, &json!({ "a": 1 }), &json!({ "b": 1 })),
            ["a", "b"]
        );
        assert_eq!(
            paths(&mut known, &json!({ "a": [1, 2] }), &json!({ "a": [1] })),
            ["a"]
        );
        assert_eq!(
            paths(&mut known, &json!({ "a": [1, 2] }), &json!({ "a": [2, 1] })),
            ["a/*", "a/*"]
        );
        assert_eq!(paths(&mut known, &json!({ "a": null }), &json!({})), ["a"]);
        assert_eq!(
            paths(
                &mut known,
                &json!({ "a": "2025-01-01T00:00:01Z" }),
                &json!({ "a": "2025-01-01T00:09:01Z" })
            ),
            ["a"]
        );
    }

    #[test]
    fn refusals_are_compared_by_what_clients_read() {
        let refusal = |code: u16, message: &str, fields: &[&str]| {
            let causes: Vec<Value> = fields
                .iter()
                .map(|field| json!({ "reason": "R", "field": field, "message": message }))
                .collect();
            json!({ "status": "Failure", "code": code, "reason": "Invalid", "message": message, "details": { "causes": causes } })
        };
        let mut known = Dictionary::default();
        assert!(
            paths(
                &mut known,
                &refusal(422, "x", &["a", "b", "b"]),
                &refusal(422, "y", &["b", "a"])
            )
            .is_empty()
        );
        assert_eq!(
            paths(
                &mut known,
                &refusal(422, "x", &["a"]),
                &refusal(422, "x", &["b"])
            ),
            ["causes/*"]
        );
        assert_eq!(
            paths(&mut known, &refusal(429, "x", &[]), &refusal(429, "y", &[])),
            ["message/*"]
        );
    }

    #[test]
    fn generated_names_correspond() {
        let mut known = Dictionary::default();
        known.add_name("g1-abcde", "g1-vwxyz");
        assert!(
            paths(
                &mut known,
                &json!({ "a": "g1-abcde" }),
                &json!({ "a": "g1-vwxyz" })
            )
            .is_empty()
        );
        assert_eq!(
            paths(
                &mut known,
                &json!({ "a": "g1-abcde" }),
                &json!({ "a": "g1-xxxxx" })
            ),
            ["a"]
        );
    }
}
