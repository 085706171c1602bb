//! Who may do what: RBAC.

use serde_json::Value;

use super::{User, failure::Failure, request::Request, state::State, store::Key};

/// A question that RBAC answers.
#[derive(Debug, Clone, Default)]
pub struct Action {
    pub verb: String,
    pub group: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
}

impl Action {
    pub fn of(request: &Request) -> Self {
        Self {
            verb: request.verb.name().to_owned(),
            group: request.kind.group.clone(),
            resource: request.kind.plural.clone(),
            subresource: request.subresource.clone(),
            namespace: if request.kind.is("", "Namespace") {
                request.name.clone()
            } else {
                request.namespace.clone()
            },
            name: if request.name.is_empty() {
                selected_name(request)
            } else {
                request.name.clone()
            },
        }
    }

    fn full_resource(&self) -> String {
        if self.subresource.is_empty() {
            self.resource.clone()
        } else {
            format!("{}/{}", self.resource, self.subresource)
        }
    }

    fn fits(&self, rule: &Value) -> bool {
        let names = |field: &str| {
            rule[field]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
        };
        let has =
            |field: &str, wanted: &str| names(field).any(|name| name == "*" || name == wanted);
        let is_resource = |name: &str| match name.split_once('/') {
            Some((resource, subresource)) => {
                subresource == self.subresource
                    && !subresource.is_empty()
                    && (resource == "*" || resource == self.resource)
            }
            None => name == "*" || self.subresource.is_empty() && name == self.resource,
        };
        let is_named = names("resourceNames").next().is_none()
            || names("resourceNames").any(|name| name == self.name);
        has("verbs", &self.verb)
            && has("apiGroups", &self.group)
            && names("resources").any(is_resource)
            && is_named
    }
}

/// Whether a user may do this.
pub fn is_allowed(state: &State, user: &User, action: &Action) -> bool {
    if user.groups.iter().any(|group| group == "system:masters") || is_basic(action) {
        return true;
    }
    let grants = |resource: &str, namespace: &str| {
        state.store.list(resource, namespace).any(|(key, binding)| {
            is_meant(binding, user)
                && role_of(state, key, binding).is_some_and(|role| {
                    role["rules"]
                        .as_array()
                        .is_some_and(|rules| rules.iter().any(|rule| action.fits(rule)))
                })
        })
    };
    grants("clusterrolebindings.rbac.authorization.k8s.io", "")
        || (!action.namespace.is_empty()
            && grants("rolebindings.rbac.authorization.k8s.io", &action.namespace))
}

/// The only name that a list or a watch selects.
fn selected_name(request: &Request) -> String {
    let mut fields = request
        .parameter("fieldSelector")
        .unwrap_or_default()
        .split(',');
    let name = fields.find_map(|field| field.strip_prefix("metadata.name="));
    name.map(|name| name.trim_start_matches('='))
        .unwrap_or_default()
        .to_owned()
}

/// What the role `system:basic-user` gives to everyone.
fn is_basic(action: &Action) -> bool {
    let reviews = [
        ("authorization.k8s.io", "selfsubjectaccessreviews"),
        ("authentication.k8s.io", "selfsubjectreviews"),
    ];
    action.verb == "create" && reviews.contains(&(action.group.as_str(), action.resource.as_str()))
}

fn role_of<'a>(state: &'a State, binding_key: &Key, binding: &Value) -> Option<&'a Value> {
    let reference = &binding["roleRef"];
    let (resource, namespace) = match reference["kind"].as_str()? {
        "ClusterRole" => ("clusterroles.rbac.authorization.k8s.io", ""),
        _ => (
            "roles.rbac.authorization.k8s.io",
            binding_key.namespace.as_str(),
        ),
    };
    let key = Key {
        resource: resource.to_owned(),
        namespace: namespace.to_owned(),
        name: reference["name"].as_str()?.to_owned(),
    };
    state.store.get(&key).map(AsRef::as_ref)
}

fn is_meant(binding: &Value, user: &User) -> bool {
    let subjects = binding["subjects"].as_array().into_iter().flatten();
    subjects.into_iter().any(|subject| {
        let name = subject["name"].as_str().unwrap_or_default();
        match subject["kind"].as_str() {
            Some("User") => name == user.name,
            Some("Group") => user.groups.iter().any(|group| group == name),
            Some("ServiceAccount") => {
                let account = user
                    .name
                    .strip_prefix("system:serviceaccount:")
                    .and_then(|account| account.split_once(':'));
                account == Some((subject["namespace"].as_str().unwrap_or_default(), name))
            }
            _ => false,
        }
    })
}

/// Refuses what the user may not do.
pub fn check(state: &State, user: &User, request: &Request) -> Result<(), Failure> {
    let action = Action::of(request);
    if is_allowed(state, user, &action) {
        return Ok(());
    }
    let why = format!(
        "{} cannot {} {} in {:?}",
        user.name,
        action.verb,
        action.full_resource(),
        action.namespace
    );
    Err(Failure::forbidden(&request.kind, &action.name, &why))
}

/// Whether a user may do what a review asks about.
pub fn is_allowed_in_review(state: &State, user: &User, spec: &Value) -> bool {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let attributes = &spec["resourceAttributes"];
    let action = Action {
        verb: text(&attributes["verb"]),
        group: text(&attributes["group"]),
        resource: text(&attributes["resource"]),
        subresource: text(&attributes["subresource"]),
        namespace: text(&attributes["namespace"]),
        name: text(&attributes["name"]),
    };
    is_allowed(state, user, &action)
}
