//! How much is read of each answer of a peer.

use http::Uri;
use liqo_controller_runtime::provider_limits::{
    LimitExceeded, MAX_ANSWER_LEN, MAX_EVENT_ANSWER_LEN, MAX_PAGE_LEN,
};

/// The kinds of answers, by what limits them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerKind {
    /// The log of a pod. It is streamed to the caller, so its length does not matter.
    Log,
    /// One object.
    Object,
    /// The metrics of many pods, in one answer.
    Metrics,
    /// One page of a list.
    Page(ContentKind),
    /// A stream of lines.
    Watch(ContentKind),
}

/// The kinds of objects in a list or a watch, by what limits them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentKind {
    /// Kubernetes events. More of them than are read are no fault: some are skipped.
    Events,
    Objects,
}

impl AnswerKind {
    /// The kind of the answer to a request for this URI.
    pub fn for_request(uri: &Uri) -> Self {
        let (path, query) = (uri.path(), uri.query().unwrap_or_default());
        let has = |parameter: &str| query.split('&').any(|pair| pair.starts_with(parameter));
        let content = if path.ends_with("/events") {
            ContentKind::Events
        } else {
            ContentKind::Objects
        };
        // A pod may have the name of a subresource.
        let subresource = match path.split('/').collect::<Vec<_>>().as_slice() {
            ["", "api", "v1", "namespaces", _, "pods", _, subresource] => Some(*subresource),
            _ => None,
        };
        match subresource {
            Some("log") => Self::Log,
            Some(_) => Self::Object,
            _ if path.starts_with("/apis/metrics.k8s.io/") => Self::Metrics,
            _ if has("watch=true") => Self::Watch(content),
            _ if has("limit=") => Self::Page(content),
            _ => Self::Object,
        }
    }

    /// Maximum number of bytes, of a watch in one line.
    pub fn max_len(self) -> usize {
        match self {
            Self::Log => usize::MAX,
            Self::Page(ContentKind::Events) | Self::Watch(ContentKind::Events) => {
                MAX_EVENT_ANSWER_LEN
            }
            Self::Object | Self::Watch(ContentKind::Objects) => MAX_ANSWER_LEN,
            Self::Metrics | Self::Page(ContentKind::Objects) => MAX_PAGE_LEN,
        }
    }
}

/// The list that a page belongs to, and whether the page continues it.
pub fn list_of(uri: &Uri) -> (String, bool) {
    let query = uri.query().unwrap_or_default();
    let (tokens, rest): (Vec<&str>, Vec<&str>) = query
        .split('&')
        .partition(|pair| pair.starts_with("continue="));
    (
        format!("{}?{}", uri.path(), rest.join("&")),
        !tokens.is_empty(),
    )
}

/// Counts the contents of a JSON text as it arrives.
#[derive(Default)]
pub struct JsonCount {
    values: usize,
    /// Objects in the lists of the outermost object: the items of a page.
    items: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl JsonCount {
    /// Counts a piece of the text.
    pub fn add_text(&mut self, text: &[u8]) -> &Self {
        for byte in text {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b',' => self.values += 1,
                b'[' | b'{' => {
                    self.values += 1;
                    self.items += usize::from(*byte == b'{' && self.depth == 2);
                    self.depth += 1;
                }
                b']' | b'}' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
        self
    }

    /// Returns the limit that is exceeded, if there is one.
    pub fn check_limits(&self, max_values: usize, max_items: usize) -> Result<(), LimitExceeded> {
        if self.items > max_items {
            Err(LimitExceeded::PageObjects)
        } else if self.values > max_values {
            Err(LimitExceeded::Values)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use liqo_controller_runtime::provider_limits::{MAX_PAGE_OBJECTS, MAX_PAGE_VALUES, MAX_VALUES};

    use super::*;

    #[test]
    fn each_request_has_the_limit_of_its_answer() {
        let answer = |uri: &str| AnswerKind::for_request(&uri.parse().unwrap());
        assert_eq!(
            answer("/api/v1/namespaces/m/pods/p/log?follow=true&limitBytes=5"),
            AnswerKind::Log
        );
        assert_eq!(
            answer("/api/v1/namespaces/m/pods/p/exec?command=limit=&watch=true"),
            AnswerKind::Object
        );
        assert_eq!(
            answer("/apis/metrics.k8s.io/v1beta1/namespaces/m/pods?"),
            AnswerKind::Metrics
        );
        assert_eq!(
            answer("/api/v1/namespaces/t/secrets?&labelSelector=a&limit=16"),
            AnswerKind::Page(ContentKind::Objects)
        );
        assert_eq!(
            answer("/api/v1/namespaces/t/secrets?&watch=true&resourceVersion=0"),
            AnswerKind::Watch(ContentKind::Objects)
        );
        let page_of_events = answer("/api/v1/namespaces/m/events?&limit=16");
        assert_eq!(
            (page_of_events, page_of_events.max_len()),
            (AnswerKind::Page(ContentKind::Events), MAX_EVENT_ANSWER_LEN)
        );
        assert_eq!(
            answer("/api/v1/namespaces/t/secrets/log"),
            AnswerKind::Object
        );
        assert_eq!(
            answer("/api/v1/namespaces/pods/pods/log"),
            AnswerKind::Object
        );
    }

    #[test]
    fn the_pages_of_one_list_belong_together() {
        let list = |uri: &str| list_of(&uri.parse().unwrap());
        assert_eq!(list("/pods?limit=16"), ("/pods?limit=16".to_owned(), false));
        assert_eq!(
            list("/pods?limit=16&continue=abc"),
            ("/pods?limit=16".to_owned(), true)
        );
        assert_ne!(
            list("/pods?limit=16&labelSelector=a").0,
            list("/pods?limit=16").0
        );
    }

    #[test]
    fn values_and_items_are_counted_across_pieces() {
        let mut count = JsonCount::default();
        count.add_text(br#"{"a":"{{{,"#);
        assert_eq!(count.add_text(br#"\",[","b":[1,2]}"#).values, 4);
        let mut page = JsonCount::default();
        page.add_text(br#"{"metadata":{},"items":[{"a":[{},{}]"#);
        assert_eq!(page.add_text(br#"},{}],"more":{}}"#).items, 2);
    }

    #[test]
    fn an_object_may_have_fewer_values_than_a_page_and_a_page_not_any_number_of_objects() {
        let of = |values, items| JsonCount {
            values,
            items,
            ..JsonCount::default()
        };
        assert_eq!(
            of(MAX_PAGE_VALUES, MAX_PAGE_OBJECTS).check_limits(MAX_PAGE_VALUES, MAX_PAGE_OBJECTS),
            Ok(())
        );
        assert_eq!(
            of(MAX_VALUES + 1, 0).check_limits(MAX_VALUES, usize::MAX),
            Err(LimitExceeded::Values)
        );
        assert_eq!(
            of(0, MAX_PAGE_OBJECTS + 1).check_limits(MAX_PAGE_VALUES, MAX_PAGE_OBJECTS),
            Err(LimitExceeded::PageObjects)
        );
    }
}
