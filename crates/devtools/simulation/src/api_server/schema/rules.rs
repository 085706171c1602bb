//! The rules of a schema, in CEL (`x-kubernetes-validations`).

use std::sync::LazyLock;

use kube_cel::KubeCelExt;
use kube_cel::cel::objects::OptionalValue;
use kube_cel::cel::{Context, ExecutionError, Program, Value as Cel};
use serde_json::{Value, json};

use super::{Additional, Cause, CauseKind, Node, cel, child, pair::Pair};

static FUNCTIONS: LazyLock<Context<'static>> = LazyLock::new(|| Context::default().with_all());

pub struct Rule {
    program: Result<Program, String>,
    text: String,
    message: Option<String>,
    message_program: Option<Program>,
    reason: CauseKind,
    field: String,
    /// Whether it compares with the old value, so that it can only be checked if there is one.
    uses_old: bool,
    /// Whether it can do without an old value.
    old_is_optional: bool,
}

impl Rule {
    pub fn new(rule: &Value, node: &Node) -> Self {
        let text_of = |key: &str| rule[key].as_str().map(str::trim).filter(|text| !text.is_empty());
        let program = Program::compile(rule["rule"].as_str().unwrap_or_default()).map_err(|error| error.to_string());
        Rule {
            uses_old: program.as_ref().is_ok_and(|program| program.references().has_variable("oldSelf")),
            program,
            text: text_of("rule").unwrap_or_default().to_owned(),
            message: text_of("message").map(str::to_owned),
            message_program: text_of("messageExpression").and_then(|text| Program::compile(text).ok()),
            reason: match rule["reason"].as_str() {
                Some("FieldValueForbidden") => CauseKind::Forbidden,
                Some("FieldValueRequired") => CauseKind::Required,
                Some("FieldValueDuplicate") => CauseKind::Duplicate,
                _ => CauseKind::Invalid,
            },
            field: text_of("fieldPath").and_then(|path| field_path(path, node)).unwrap_or_default(),
            old_is_optional: rule["optionalOldSelf"] == true,
        }
    }

    /// Whether it was compiled, for tests.
    #[cfg(test)]
    pub fn compiles(&self) -> bool {
        self.program.is_ok()
    }

    /// What a cause says instead of the rule.
    fn name(&self) -> &str {
        self.message.as_deref().unwrap_or(&self.text)
    }

    fn message(&self, context: &Context) -> String {
        let is_usable = |text: &String| !text.is_empty() && text.len() <= 5 * 1024 && !text.contains('\n');
        let evaluated = match self.message_program.as_ref().map(|program| program.execute(context)) {
            Some(Ok(Cel::String(text))) => Some(text.trim().to_owned()).filter(is_usable),
            _ => None,
        };
        let written = || self.message.clone().unwrap_or_else(|| format!("failed rule: {}", self.text));
        evaluated.unwrap_or_else(written)
    }
}

/// The path of a field below a rule's own, as causes name it.
fn field_path(path: &str, mut node: &Node) -> Option<String> {
    let (mut written, mut rest) = (String::new(), path);
    while !rest.is_empty() {
        let name = if let Some(after) = rest.strip_prefix("['") {
            let (name, after) = after.split_once("']")?;
            rest = after;
            name
        } else {
            let after = rest.strip_prefix('.')?;
            let (name, after) = after.split_at(after.find(['.', '[']).unwrap_or(after.len()));
            rest = after;
            name
        };
        written = if node.properties.is_empty() { format!("{written}[{name}]") } else { child(&written, name) };
        node = node.field(name)?;
    }
    Some(written)
}

/// Which part of an update is looked at: what did not change is not refused.
#[derive(Clone, Copy, Default)]
pub struct Change<'a> {
    pair: Option<Pair<'a>>,
    /// The nearest part around it that has an old value.
    around: Option<Pair<'a>>,
}

impl<'a> Change<'a> {
    pub fn of(pair: Option<Pair<'a>>) -> Self {
        Change { pair, around: None }
    }

    fn field(self, key: &str) -> Change<'a> {
        match self.pair {
            None => self,
            // Both kinds of an update are the same.
            Some(_) if self.around.is_none() && (key == "apiVersion" || key == "kind") => Change::default(),
            Some(pair) => Change { pair: pair.field(key), around: Some(pair) },
        }
    }

    fn item(self, index: usize) -> Change<'a> {
        self.pair.map_or(self, |pair| Change { pair: pair.item(index), around: Some(pair) })
    }

    fn is_unchanged(self) -> bool {
        self.pair.or(self.around).is_some_and(Pair::is_unchanged)
    }
}

/// What is checked: a value of a schema, and what it was before.
#[derive(Clone, Copy)]
pub struct Checked<'a> {
    /// The schema with the rules: that of the value, or a part of its `allOf`.
    pub rules: &'a Node,
    pub node: &'a Node,
    pub value: &'a Value,
    pub old: Option<&'a Value>,
    pub change: Change<'a>,
    /// Whether it is an object with a kind and metadata.
    pub is_resource: bool,
}

/// The causes, and the warnings: what is wrong but was so before.
#[derive(Default)]
pub struct Findings {
    pub causes: Vec<Cause>,
    pub warnings: Vec<String>,
}

/// Checks the rules of a value whose path is `path`, and of all inside.
pub fn check(checked: Checked, path: &str, findings: &mut Findings) {
    let Checked { rules, node, value, old, change, is_resource } = checked;
    if value.is_null() || !rules.has_rules {
        return;
    }
    let old = old.filter(|old| !old.is_null());
    if !rules.rules.is_empty() {
        check_rules(&Checked { old, ..checked }, path, findings);
    }
    for part in &rules.all_of {
        let change = Change { pair: None, around: change.around };
        check(Checked { rules: part, node, value, old, change, is_resource }, path, findings);
    }
    match value {
        Value::Object(_) => check_fields(checked, old, path, findings),
        Value::Array(_) => check_items(checked, old, path, findings),
        _ => {}
    }
}

fn check_fields(checked: Checked, old: Option<&Value>, path: &str, findings: &mut Findings) {
    let Checked { rules, node, value, change, .. } = checked;
    let entries = || value.as_object().into_iter().flatten();
    let inside = |rules, node: &_, key: &String, value, path: &str, findings: &mut Findings| {
        check_inside(rules, node, value, old.and_then(|old| old.get(key)), change.field(key), path, findings);
    };
    if let (Some(Additional::Of(rules)), Some(Additional::Of(node))) = (&rules.additional, &node.additional) {
        for (key, value) in entries() {
            inside(rules, node, key, value, &format!("{path}[{key}]"), findings);
        }
    }
    for (key, value) in entries() {
        if let (Some(rules), Some(node)) = (rules.properties.get(key), node.properties.get(key)) {
            inside(rules, node, key, value, &child(path, key), findings);
        }
    }
}

fn check_items(checked: Checked, old: Option<&Value>, path: &str, findings: &mut Findings) {
    let (Some(rules), Some(node)) = (&checked.rules.items, &checked.node.items) else {
        return;
    };
    for (index, value) in checked.value.as_array().into_iter().flatten().enumerate() {
        let old = old.and_then(|old| checked.node.item_like(value, old));
        check_inside(rules, node, value, old, checked.change.item(index), &format!("{path}[{index}]"), findings);
    }
}

fn check_inside<'a>(
    rules: &'a Node,
    node: &'a Node,
    value: &'a Value,
    old: Option<&'a Value>,
    change: Change<'a>,
    path: &str,
    findings: &mut Findings,
) {
    check(Checked { rules, node, value, old, change, is_resource: node.is_embedded }, path, findings);
}

/// Checks the rules of one value.
fn check_rules(checked: &Checked, path: &str, findings: &mut Findings) {
    let convert = |value| cel::convert(checked.node, value, checked.is_resource, &FUNCTIONS);
    let mut context = FUNCTIONS.new_inner_scope();
    context.add_variable_from_value("self", convert(checked.value));
    let old = checked.rules.rules.iter().any(|rule| rule.uses_old).then(|| checked.old.map(convert)).flatten();
    if let Some(old) = &old {
        context.add_variable_from_value("oldSelf", old.clone());
    }
    for rule in &checked.rules.rules {
        if !rule.text.is_empty() {
            check_rule(rule, checked, &context, old.as_ref(), path, findings);
        }
    }
}

fn check_rule(rule: &Rule, checked: &Checked, context: &Context, old: Option<&Cel>, path: &str, findings: &mut Findings) {
    let kind = json!(checked.node.kind);
    let mut refuse = |message: String| {
        findings.causes.push(Cause::new(path, CauseKind::Invalid, Some(&kind), &message));
    };
    let program = match &rule.program {
        Ok(program) => program,
        Err(error) => return refuse(format!("rule compile error: {error}")),
    };
    if rule.uses_old && old.is_none() && !rule.old_is_optional {
        return;
    }
    if let Some(mismatch) = cel::mismatch(checked.node, checked.value) {
        return refuse(format!("{mismatch} evaluating rule: {}", rule.name()));
    }
    let result = if rule.old_is_optional {
        let mut context = context.new_inner_scope();
        let old = old.cloned().map_or_else(OptionalValue::none, OptionalValue::of);
        context.add_variable_from_value("oldSelf", Cel::Opaque(std::sync::Arc::new(old)));
        program.execute(&context)
    } else {
        program.execute(context)
    };
    match result {
        Ok(Cel::Bool(true)) => {}
        Err(error) => refuse(failure(&error, rule)),
        Ok(_) => {
            let path = if rule.field.is_empty() { path.to_owned() } else { child(path, &rule.field) };
            let cause = Cause::new(&path, rule.reason, Some(&kind), &rule.message(context));
            if !rule.uses_old && checked.change.is_unchanged() {
                findings.warnings.push(cause.to_string());
            } else {
                findings.causes.push(cause);
            }
        }
    }
}

/// What cel-go says about a rule that cannot be evaluated.
fn failure(error: &ExecutionError, rule: &Rule) -> String {
    let text = match error {
        ExecutionError::NoSuchKey(key) => format!("no such key: {key}"),
        ExecutionError::IndexOutOfBounds(Cel::Int(index)) => format!("index out of bounds: {index}"),
        ExecutionError::DivisionByZero(_) => "division by zero".to_owned(),
        ExecutionError::RemainderByZero(_) => "modulus by zero".to_owned(),
        ExecutionError::Overflow(..) => "integer overflow".to_owned(),
        ExecutionError::NoSuchOverload
        | ExecutionError::UnsupportedBinaryOperator(..)
        | ExecutionError::ValuesNotComparable(..) => {
            let text = "'no such overload': call arguments did not match a supported operator, function or macro signature";
            return format!("{text} for rule: {}", rule.name());
        }
        error => error.to_string(),
    };
    format!("{text} evaluating rule: {}", rule.name())
}
