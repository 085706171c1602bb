//! The rules of a schema, in CEL (`x-kubernetes-validations`).

use std::sync::{Arc, LazyLock};

use kube_cel::KubeCelExt;
use kube_cel::cel::objects::{Key, Map};
use kube_cel::cel::{Context, Program, Value as Cel};
use serde_json::{Value, json};

use super::{Cause, CauseKind, Node, child, pair::Pair};

static FUNCTIONS: LazyLock<Context<'static>> = LazyLock::new(|| Context::default().with_all());

pub struct Rule {
    program: Result<Program, String>,
    /// What a cause says.
    message: String,
    /// Whether it compares with the old value, so that it can only be checked if there is one.
    uses_old: bool,
}

impl Rule {
    pub fn new(rule: &Value) -> Self {
        let text = |key: &str| {
            rule[key]
                .as_str()
                .map(str::trim)
                .filter(|text| !text.is_empty())
        };
        let program =
            Program::compile(text("rule").unwrap_or_default()).map_err(|error| error.to_string());
        let unnamed = || format!("failed rule: {}", text("rule").unwrap_or_default());
        Rule {
            uses_old: program
                .as_ref()
                .is_ok_and(|program| program.references().has_variable("oldSelf")),
            program,
            message: text("message").map_or_else(unnamed, str::to_owned),
        }
    }

    #[cfg(test)]
    pub fn compiles(&self) -> bool {
        self.program.is_ok()
    }

    /// What is wrong, if the rule does not hold.
    fn fault(&self, context: &Context) -> Option<String> {
        match self
            .program
            .as_ref()
            .map(|program| program.execute(context))
        {
            Ok(Ok(Cel::Bool(true))) => None,
            Ok(Ok(_)) => Some(self.message.clone()),
            Ok(Err(error)) => Some(format!("{error} evaluating rule: {}", self.message)),
            Err(error) => Some(format!("rule compile error: {error}")),
        }
    }
}

/// A value of a schema, and what it was before.
#[derive(Clone, Copy)]
pub struct Checked<'a> {
    pub node: &'a Node,
    pub value: &'a Value,
    pub old: Option<&'a Value>,
    /// The nearest part around it that has an old value.
    pub around: Option<Pair<'a>>,
}

impl<'a> Checked<'a> {
    fn pair(self) -> Option<Pair<'a>> {
        self.old
            .map(|old| Pair {
                node: self.node,
                new: self.value,
                old,
            })
            .or(self.around)
    }

    fn inside(self, node: &'a Node, value: &'a Value, old: Option<&'a Value>) -> Self {
        Self {
            node,
            value,
            old: old.filter(|old| !old.is_null()),
            around: self.pair(),
        }
    }
}

/// Checks the rules of a value whose path is `path`, and of all inside.
pub fn check(checked: Checked, path: &str, causes: &mut Vec<Cause>) {
    let Checked {
        node, value, old, ..
    } = checked;
    if value.is_null() || !node.has_rules {
        return;
    }
    check_rules(checked, path, causes);
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let old = old.and_then(|old| old.get(name));
                let (node, path) = match (node.properties.get(name), &node.additional) {
                    (Some(node), _) => (node, child(path, name)),
                    (None, Some(node)) => (&**node, format!("{path}[{name}]")),
                    (None, None) => continue,
                };
                check(checked.inside(node, value, old), &path, causes);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                let old = old.and_then(|old| node.item_like(item, old));
                if let Some(node) = &node.items {
                    check(
                        checked.inside(node, item, old),
                        &format!("{path}[{index}]"),
                        causes,
                    );
                }
            }
        }
        _ => {}
    }
}

/// Checks the rules of one value. What an update did not change is not refused.
fn check_rules(checked: Checked, path: &str, causes: &mut Vec<Cause>) {
    let Checked {
        node, value, old, ..
    } = checked;
    if node.rules.is_empty() {
        return;
    }
    let mut context = FUNCTIONS.new_inner_scope();
    context.add_variable_from_value("self", to_cel(value));
    if let Some(old) = old {
        context.add_variable_from_value("oldSelf", to_cel(old));
    }
    for rule in node
        .rules
        .iter()
        .filter(|rule| old.is_some() || !rule.uses_old)
    {
        let fault = rule.fault(&context);
        if let Some(fault) =
            fault.filter(|_| rule.uses_old || !checked.pair().is_some_and(Pair::is_unchanged))
        {
            causes.push(Cause::new(
                path,
                CauseKind::Invalid,
                Some(&json!(node.kind)),
                &fault,
            ));
        }
    }
}

/// A value as rules see it: fields that are null are absent.
fn to_cel(value: &Value) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(value) => Cel::Bool(*value),
        Value::Number(number) => number
            .as_i64()
            .map_or_else(|| Cel::Float(number.as_f64().unwrap_or(f64::NAN)), Cel::Int),
        Value::String(text) => Cel::String(Arc::new(text.clone())),
        Value::Array(items) => Cel::List(Arc::new(items.iter().map(to_cel).collect())),
        Value::Object(fields) => {
            let present = fields.iter().filter(|(_, value)| !value.is_null());
            let entries =
                present.map(|(name, value)| (Key::String(Arc::new(name.clone())), to_cel(value)));
            Cel::Map(Map {
                map: Arc::new(entries.collect()),
            })
        }
    }
}
