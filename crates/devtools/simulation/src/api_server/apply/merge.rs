//! The live object with what a configuration says about it.

use serde_json::{Map, Value};

use super::{
    super::lists::Node,
    paths::Element,
    values::{Shape, fields_of, is_leaf, items_of, shape_of},
};

pub fn merge(node: Node, live: Option<&Value>, applied: Option<&Value>) -> Option<Value> {
    let kind = node.kind();
    let preferred = applied.or(live)?;
    let shape = shape_of(kind, preferred);
    if is_leaf(kind, shape, [live, applied]) {
        return Some(preferred.clone());
    }
    if let (Shape::List, Some(list), Some(items)) = (shape, &kind.list, node.items()) {
        return Some(Value::Array(merge_items(
            items,
            &items_of(list, live),
            &items_of(list, applied),
        )));
    }
    let mut merged = Map::new();
    for (name, _) in fields_of(live).chain(fields_of(applied)) {
        let [live, applied] = [live, applied].map(|value| value.and_then(|value| value.get(name)));
        if let Some(field) = node.field(name).and_then(|node| merge(node, live, applied)) {
            merged.insert(name.clone(), field);
        }
    }
    Some(Value::Object(merged))
}

/// Merges items in the order of the configuration. Items that only the live list has keep their
/// place in it.
fn merge_items(
    node: Node,
    live: &[(Element, &Value)],
    applied: &[(Element, &Value)],
) -> Vec<Value> {
    let live_item = |element: &Element| {
        live.iter()
            .find(|(other, _)| other == element)
            .map(|(_, item)| *item)
    };
    let is_applied = |element: &Element| applied.iter().any(|(other, _)| other == element);
    let merge_one =
        |(element, item): &(Element, &Value)| merge(node, live_item(element), Some(item));
    let (mut merged, mut begin) = (Vec::new(), 0);
    for (element, item) in live {
        // The next item of the configuration that exists already. Others are new, or were moved.
        let next = (begin..applied.len()).find(|index| live_item(&applied[*index].0).is_some());
        if !is_applied(element) {
            merged.push((*item).clone());
        } else if let Some(next) = next.filter(|index| applied[*index].0 == *element) {
            merged.extend(applied[begin..=next].iter().filter_map(merge_one));
            begin = next + 1;
        }
    }
    merged.extend(applied[begin..].iter().filter_map(merge_one));
    merged
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::super::lists::Lists, *};

    #[test]
    fn items_come_in_the_order_of_the_configuration() {
        let pod = |names: &str| -> Value {
            let containers: Vec<Value> =
                names.chars().map(|name| json!({ "name": name })).collect();
            json!({ "spec": { "containers": containers } })
        };
        let merged = |live: &str, applied: &str| {
            merge(
                Lists::of_built_in("", "Pod").root(),
                Some(&pod(live)),
                Some(&pod(applied)),
            )
            .unwrap()
        };
        assert_eq!(merged("abx", "ba"), pod("bxa"));
        assert_eq!(merged("xayb", "nab"), pod("xnayb"));
        assert_eq!(merged("x", "ab"), pod("xab"));
    }
}
