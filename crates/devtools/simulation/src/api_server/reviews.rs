//! Objects that are asked and answered, and never stored: reviews of access and tokens, and new
//! tokens.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use super::{
    User, access,
    decode::decode,
    failure::Failure,
    kinds::Kind,
    lists::Lists,
    request::Request,
    state::State,
    writes::{self, Answer},
};

/// The audience of tokens for the API server itself.
const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
const USUAL_TOKEN_SECONDS: i64 = 3600;

/// Answers a review.
pub fn answer(state: &State, user: &User, request: &Request) -> Answer {
    let mut review = decode(request, request.object()?)?;
    writes::track(state, request, None, &mut review);
    let status = match request.kind.kind.as_str() {
        "TokenReview" => review_token(state, &review["spec"]),
        "SelfSubjectReview" => {
            review["metadata"]["creationTimestamp"] = json!(state.now_text());
            json!({ "userInfo": user_info(user) })
        }
        kind => json!({ "allowed": is_access_allowed(state, user, kind, &review["spec"]) }),
    };
    review["status"] = status;
    Ok((StatusCode::CREATED, Arc::new(review)))
}

fn user_info(user: &User) -> Value {
    json!({ "username": user.name, "groups": user.groups })
}

fn is_access_allowed(state: &State, user: &User, kind: &str, spec: &Value) -> bool {
    if kind == "SelfSubjectAccessReview" {
        return access::is_allowed_in_review(state, user, spec);
    }
    let groups = spec["groups"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str);
    let user = User {
        name: spec["user"].as_str().unwrap_or_default().to_owned(),
        groups: groups.map(str::to_owned).collect(),
    };
    access::is_allowed_in_review(state, &user, spec)
}

fn review_token(state: &State, spec: &Value) -> Value {
    match user_of(state, spec["token"].as_str().unwrap_or_default()) {
        Some(user) => json!({ "authenticated": true, "user": user_info(&user) }),
        None => json!({ "user": {}, "error": "invalid bearer token" }),
    }
}

/// Issues a token of a service account. It says what those of Kubernetes say, and nobody has signed
/// it.
pub fn issue_token(state: &mut State, request: &Request) -> Answer {
    let accounts = &request.kind;
    let account = state.get(accounts, &request.namespace, &request.name);
    let account = account.ok_or_else(|| Failure::not_found(accounts, &request.name))?;
    let requests = Kind {
        group: "authentication.k8s.io".to_owned(),
        kind: "TokenRequest".to_owned(),
        lists: Arc::new(Lists::of_built_in("authentication.k8s.io", "TokenRequest")),
        ..(**accounts).clone()
    };
    let request = Request {
        kind: Arc::new(requests),
        ..request.clone()
    };
    let mut answer = decode(&request, request.object()?)?;
    let seconds = answer["spec"]["expirationSeconds"]
        .as_i64()
        .unwrap_or(USUAL_TOKEN_SECONDS);
    let bound = bound_object(state, &request.namespace, &answer["spec"]["boundObjectRef"])?;
    answer["spec"]["expirationSeconds"] = json!(seconds);
    answer["apiVersion"] = json!("authentication.k8s.io/v1");
    writes::track(state, &request, None, &mut answer);
    if answer["spec"]["audiences"].is_null() {
        answer["spec"]["audiences"] = json!([ISSUER]);
    }
    let metadata = &mut answer["metadata"];
    metadata["name"] = json!(request.name);
    metadata["namespace"] = json!(request.namespace);
    metadata["uid"] = account["metadata"]["uid"].clone();
    metadata["creationTimestamp"] = json!(state.now_text());
    let now = state.now();
    let end = now
        .checked_add(jiff::SignedDuration::from_secs(seconds))
        .unwrap_or(now);
    let mut claims = json!({
        "namespace": request.namespace,
        "serviceaccount": { "name": request.name, "uid": account["metadata"]["uid"] },
    });
    if let Some((kind, object)) = bound {
        claims[kind] =
            json!({ "name": object["metadata"]["name"], "uid": object["metadata"]["uid"] });
    }
    let content = json!({
        "aud": answer["spec"]["audiences"], "exp": end.as_second(), "iat": now.as_second(), "iss": ISSUER, "jti": state.uid(),
        "kubernetes.io": claims, "nbf": now.as_second(),
        "sub": format!("system:serviceaccount:{}:{}", request.namespace, request.name),
    });
    // Three parts, as those of a JSON web token: an empty header, the content, and no signature.
    let token = format!(
        "e30.{}.",
        data_encoding::BASE64URL_NOPAD.encode(content.to_string().as_bytes())
    );
    let end = end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    answer["status"] = json!({ "token": token, "expirationTimestamp": end });
    Ok((StatusCode::CREATED, Arc::new(answer)))
}

/// The kinds of objects that a token can be bound to: their name in the token, and their plural.
const BOUND_KINDS: [(&str, &str); 3] = [("pod", "pods"), ("secret", "secrets"), ("node", "nodes")];

/// The object that a token is to be bound to, and its kind in the token. It must exist.
fn bound_object(
    state: &State,
    namespace: &str,
    bound: &Value,
) -> Result<Option<(&'static str, Arc<Value>)>, Failure> {
    let kind = bound["kind"].as_str().unwrap_or_default().to_lowercase();
    let Some((kind, plural)) = BOUND_KINDS.into_iter().find(|(known, _)| *known == kind) else {
        return Ok(None);
    };
    let name = bound["name"].as_str().unwrap_or_default();
    let stored = state
        .kinds
        .get("", "v1", plural)
        .ok_or_else(Failure::no_such_resource)?;
    let found =
        of_kind(state, plural, namespace, name).ok_or_else(|| Failure::not_found(&stored, name))?;
    Ok(Some((kind, found)))
}

fn of_kind(state: &State, plural: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
    let kind = state.kinds.get("", "v1", plural)?;
    state.get(&kind, if kind.namespaced { namespace } else { "" }, name)
}

/// The user that a token of this API server stands for. A token ends with its account, and with the
/// object that it is bound to.
pub fn user_of(state: &State, token: &str) -> Option<User> {
    let content = token.split('.').nth(1)?;
    let content: Value = serde_json::from_slice(
        &data_encoding::BASE64URL_NOPAD
            .decode(content.as_bytes())
            .ok()?,
    )
    .ok()?;
    let claims = &content["kubernetes.io"];
    let namespace = claims["namespace"].as_str()?;
    let exists = |claim: &str, plural: &str| {
        let named = &claims[claim];
        let found = named["name"]
            .as_str()
            .and_then(|name| of_kind(state, plural, namespace, name));
        named.is_null() || found.is_some_and(|object| object["metadata"]["uid"] == named["uid"])
    };
    let is_valid = state.now().as_second() < content["exp"].as_i64()?
        && exists("serviceaccount", "serviceaccounts")
        && BOUND_KINDS
            .into_iter()
            .all(|(claim, plural)| exists(claim, plural));
    let name = claims["serviceaccount"]["name"].as_str()?;
    is_valid.then(|| User::service_account(namespace, name))
}
