//! What is said of the offers: to the consumers, and here.

use std::sync::Arc;

use liqo_api::{ANSWERED, PeeringPolicy, links};
use liqo_kit::conditions::Wanted;

use super::units::Unit;
use crate::decide::{
    picture::{Answer, Asking, Picture, Plan, PolicyVersion, Reading},
    publish::Standing,
};

/// What is told to the consumers, and here.
pub fn tell(picture: &Picture, asking: &[Asking], units: &[Unit], standings: &[Standing], plan: &mut Plan) {
    let mut offered: Vec<Vec<&str>> = vec![Vec::new(); asking.len()];
    for (unit, standing) in units.iter().zip(standings) {
        // What does not stand yet is written now or in a moment.
        if standing.published.is_some() || !standing.target.is_zero() {
            offered[unit.asking].push(&unit.pool);
        }
    }
    for (one, pools) in asking.iter().zip(offered) {
        if let Some(policy) = one.policy {
            plan.followed.insert(one.tenant.consumer.clone(), PolicyVersion::of(policy));
        }
        let reading = picture.readings.get(&one.tenant.consumer);
        let say = |kind| outcome(kind, one.policy, reading, &pools);
        let (current, wanted) = (one.request.conditions.clone(), say(ANSWERED));
        plan.answers.push(Answer { namespace: one.namespace.to_owned(), current, wanted });
        plan.links.insert(one.tenant.consumer.clone(), say(links::RESOURCES_OFFERED));
    }
    not_readable(picture, plan);
}

fn outcome(kind: &'static str, policy: Option<&Arc<PeeringPolicy>>, reading: Option<&Reading>, pools: &[&str]) -> Wanted {
    let ours = kind == links::RESOURCES_OFFERED;
    let Some(policy) = policy else {
        let message = "the provider shares nothing with this cluster: no PeeringPolicy selects it";
        return Wanted::no(kind, "NoPolicy", message);
    };
    let name = policy.metadata.name.as_deref().unwrap_or_default();
    let provide = &policy.spec.provide;
    let problem = reading.and_then(|reading| reading.problem.as_deref()).filter(|_| provide.source.plugin.is_some());
    // The words of a plugin, and how policies are called, are nothing to a consumer.
    if let Some(problem) = problem.filter(|_| ours) {
        let stays = if pools.is_empty() { "nothing is offered until it answers" } else { "what was offered last stays" };
        return Wanted::no(kind, "PluginFailed", format!("policy {name}: {problem}; {stays}"));
    }
    match pools {
        [] if provide.source.plugin.is_some() => {
            Wanted::no(kind, "NothingOffered", "the provider's resource plugin offers nothing")
        }
        [] if provide.source.fixed.is_none() && provide.percentage == 0 => {
            Wanted::no(kind, "NothingShared", "the provider's PeeringPolicy shares 0 percent of its resources")
        }
        [] => {
            let message = "the provider has nothing free that was asked for; an offer follows as soon as there is something";
            Wanted::no(kind, "NothingFree", message)
        }
        pools if ours => Wanted::yes(kind, "Offered", format!("{}, under policy {name}", offered(pools))),
        pools => Wanted::yes(kind, "Offered", offered(pools)),
    }
}

fn offered(pools: &[&str]) -> String {
    match pools {
        [pool] => format!("pool {pool} is offered"),
        pools => format!("pools {} are offered", pools.join(", ")),
    }
}

/// Tenants with a request that cannot be read. Of one without any nothing is said: it may want the network alone.
fn not_readable(picture: &Picture, plan: &mut Plan) {
    let requests = picture.requests();
    for (namespace, tenant) in picture.tenants() {
        let Some(Err(error)) = requests.get(namespace).map(|request| &request.resources) else { continue };
        let error: String = error.chars().take(200).collect();
        let wanted = Wanted::no(links::RESOURCES_OFFERED, "Unreadable", format!("the request cannot be read: {error}"));
        plan.links.insert(tenant.consumer.clone(), wanted);
    }
}
