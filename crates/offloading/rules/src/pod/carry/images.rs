//! Decides which images a remote pod may use, and whether a node must ask the registry for them.

use std::borrow::Cow;

use liqo_api::OffloadedReason;
use serde_json::{Map, Value};

use crate::pod::carry::{PodRefusal, ProviderRules, last_travelled_record, listed_items};
use crate::views::{ContainerList, ContainerView, PodView, TravelledView, VolumeView};

/// Refuses a pod with an image that the provider's policy does not allow, in a container or in a
/// volume.
pub(super) fn check_images(
    spec: &Map<String, Value>,
    rules: &ProviderRules,
) -> Result<(), PodRefusal> {
    let containers = ContainerList::ALL
        .into_iter()
        .flat_map(|list| listed_items(spec, list.spec_field()))
        .map(ContainerView::of);
    let containers =
        containers.filter_map(|one| Some((format!("container {}", one.name()), one.image_text()?)));
    let volumes = listed_items(spec, "volumes").iter().map(VolumeView::of);
    let volumes = volumes.filter_map(|one| {
        let image = one.image().reference()?;
        Some((format!("volume {}", one.name()), image))
    });
    for (user, image) in containers.chain(volumes) {
        if !is_allowed(image, rules) {
            return Err(image_refusal(&user, image, rules));
        }
    }
    Ok(())
}

fn image_refusal(user: &str, image: &str, rules: &ProviderRules) -> PodRefusal {
    let names = rules.images.as_deref().unwrap_or_default();
    let instead = if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    };
    PodRefusal::new(
        OffloadedReason::ImageNotAllowed.as_str(),
        format!(
            "{user} uses the image {image:.253}, and the provider's PeeringPolicy {} allows only images of {instead}; use another, or keep the pod in its own cluster",
            rules.policy
        ),
    )
}

/// The containers of a list that exist in the remote pod, and whose image is another one than the
/// one that travelled.
pub(super) fn containers_with_new_image<'a>(
    carried: &'a Value,
    live: &'a Value,
    list: ContainerList,
) -> impl Iterator<Item = ContainerView<'a>> {
    let before = last_travelled_record(live);
    let existing = PodView::of(live).spec().containers_in(list);
    PodView::of(carried)
        .spec()
        .containers_in(list)
        .filter(move |container| {
            existing
                .clone()
                .any(|known| known.name() == container.name())
        })
        .filter(move |container| {
            TravelledView::of(&before).image(container.name()) != container.image()
        })
}

/// The reason why containers of a remote pod keep an image that its local pod no longer has.
pub fn refused_image_change(
    carried: &Value,
    live: &Value,
    rules: &ProviderRules,
) -> Option<PodRefusal> {
    for list in [ContainerList::Main, ContainerList::Init] {
        let existing = PodView::of(live).spec().containers_in(list);
        for container in containers_with_new_image(carried, live, list) {
            // One that runs already was allowed when it began.
            let is_live = existing.clone().any(|known| {
                known.name() == container.name() && known.image() == container.image()
            });
            if let Some(image) = container.image_text()
                && !is_live
                && !is_allowed(image, rules)
            {
                let user = format!("container {}", container.name());
                return Some(image_refusal(&user, image, rules));
            }
        }
    }
    None
}

/// Whether the policy allows an image. A name of the policy matches at the end of a part of the
/// image's name only: `example.com` is not the beginning of `example.com.evil.net/x`, nor of
/// `example.com:5000/x`, which is another registry.
pub(super) fn is_allowed(image: &str, rules: &ProviderRules) -> bool {
    let Some(allowed) = &rules.images else {
        return true;
    };
    let image = full_name(image);
    allowed.iter().any(|beginning| {
        let ends: &[char] = if beginning.contains('/') {
            &['/', ':', '@']
        } else {
            &['/']
        };
        !beginning.is_empty()
            && image.strip_prefix(beginning.as_str()).is_some_and(|rest| {
                rest.starts_with(ends)
                    || (beginning.contains('/') && (rest.is_empty() || beginning.ends_with('/')))
            })
    })
}

/// The name of an image with its registry, as container runtimes complete it.
fn full_name(image: &str) -> Cow<'_, str> {
    match image.split_once('/') {
        None => format!("docker.io/library/{image}").into(),
        Some(("docker.io" | "index.docker.io", rest)) if !rest.contains('/') => {
            format!("docker.io/library/{rest}").into()
        }
        Some(("index.docker.io", rest)) => format!("docker.io/{rest}").into(),
        Some((first, _)) if is_registry(first) => image.into(),
        Some(_) => format!("docker.io/{image}").into(),
    }
}

/// Whether the first part of an image's name is that of a registry.
fn is_registry(first: &str) -> bool {
    first == "localhost" || first.contains(['.', ':']) || first.to_lowercase() != first
}

/// Makes nodes ask the registry for every image, so that only images start that the pod may pull.
pub(super) fn always_pull(spec: &mut Map<String, Value>) {
    for list in ContainerList::ALL {
        let containers = spec
            .get_mut(list.spec_field())
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten();
        for container in containers.filter_map(Value::as_object_mut) {
            container.insert("imagePullPolicy".to_owned(), "Always".into());
        }
    }
    let volumes = spec
        .get_mut("volumes")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten();
    for image in volumes.filter_map(|volume| volume.get_mut("image")?.as_object_mut()) {
        image.insert("pullPolicy".to_owned(), "Always".into());
    }
}

#[cfg(test)]
mod tests {
    use liqo_api::annotations;
    use serde_json::json;

    use super::*;

    fn rules(images: &[&str]) -> ProviderRules {
        let images = Some(images.iter().map(|&one| one.to_owned()).collect());
        ProviderRules {
            images,
            policy: "partners".into(),
            ..ProviderRules::default()
        }
    }

    #[test]
    fn an_image_is_allowed_if_its_full_name_begins_with_one_of_the_policy() {
        for (beginning, image) in [
            ("docker.io", "busybox"),
            ("docker.io/library", "busybox:1"),
            ("docker.io/library/busybox", "busybox@sha256:0"),
            ("docker.io/library/busybox", "index.docker.io/busybox"),
            ("docker.io/acme/", "acme/web"),
            ("localhost", "localhost/busybox:1"),
            ("example.com:5000", "example.com:5000/web"),
        ] {
            assert!(
                is_allowed(image, &rules(&[beginning])),
                "{image} with {beginning}"
            );
        }
        for (beginning, image) in [
            ("", "busybox"),
            ("docker.io", "example.com/docker.io/x"),
            ("example.com", "example.com.evil.net/x"),
            ("example.com", "example.com:5000/x"),
            ("example.com", "example.com"),
            ("docker.io/library/busybox", "busybox-evil"),
            ("docker.io/acme", "acme-evil/web"),
            ("docker.io/acme", "docker.io/acme2/web"),
        ] {
            assert!(
                !is_allowed(image, &rules(&[beginning])),
                "{image} with {beginning}"
            );
        }
        assert!(
            is_allowed("anything", &ProviderRules::default())
                && !is_allowed("anything", &rules(&[]))
        );
    }

    #[test]
    fn images_of_all_containers_and_volumes_count() {
        for field in ["containers", "initContainers", "ephemeralContainers"] {
            let spec = json!({ field: [{ "name": "good", "image": "localhost/a" }, { "name": "bad", "image": "b" }] });
            let refusal =
                check_images(spec.as_object().unwrap(), &rules(&["localhost"])).unwrap_err();
            assert_eq!(refusal.reason, "ImageNotAllowed");
            assert!(
                refusal.message.starts_with(
                    "container bad uses the image b, and the provider's PeeringPolicy partners"
                ),
                "{refusal}"
            );
        }
        let volume = json!({ "volumes": [{ "name": "v", "image": { "reference": "b" } }, { "name": "w", "emptyDir": {} }] });
        assert!(
            check_images(volume.as_object().unwrap(), &rules(&["localhost"]))
                .unwrap_err()
                .message
                .starts_with("volume v ")
        );
        assert!(check_images(volume.as_object().unwrap(), &rules(&["docker.io"])).is_ok());
    }

    #[test]
    fn a_running_pod_keeps_its_image_if_the_new_one_is_not_allowed() {
        let containers = |image: &str| json!([{ "name": "c", "image": image }, { "name": "d", "image": "localhost/d" }]);
        let pod = |image: &str| json!({ "spec": { "containers": containers(image) } });
        let mut live = pod("localhost/a:1");
        let refused = |image: &str, live: &Value| {
            refused_image_change(&pod(image), live, &rules(&["localhost"]))
        };
        assert!(
            refused("b", &live)
                .unwrap()
                .message
                .starts_with("container c uses the image b, and the provider's")
        );
        assert_eq!(
            refused("localhost/a:2", &live),
            None,
            "an image that it gets"
        );
        // A policy that became stricter: what runs is no change.
        live["spec"]["containers"] = containers("b");
        assert_eq!(refused("b", &live), None);
        // Admission of the provider's API server gave it another name.
        live["spec"]["containers"] = containers("mirror/b");
        live["metadata"]["annotations"] =
            json!({ annotations::TRAVELLED: r#"{"images":{"c":"b"}}"# });
        assert_eq!(refused("b", &live), None);
        assert!(refused("e", &live).is_some());
        // Another change under that policy does not make it a new image.
        let mut labelled = pod("b");
        labelled["metadata"]["labels"] = json!({ "app": "web" });
        let patch = crate::pod::carry::remote_patch(&labelled, &live, &rules(&["localhost"]), true)
            .unwrap();
        json_patch::merge(&mut live, &patch);
        assert_eq!(refused("b", &live), None);
    }

    #[test]
    fn a_node_that_must_ask_the_registry_asks_for_every_image() {
        let mut spec = json!({ "containers": [{ "imagePullPolicy": "Never" }], "initContainers": [{}],
            "volumes": [{ "name": "v", "image": { "reference": "b" } }, { "name": "w", "emptyDir": {} }] });
        always_pull(spec.as_object_mut().unwrap());
        for container in ["/containers/0", "/initContainers/0"] {
            assert_eq!(
                spec.pointer(container).unwrap()["imagePullPolicy"],
                "Always"
            );
        }
        assert_eq!(
            spec["volumes"],
            json!([{ "name": "v", "image": { "reference": "b", "pullPolicy": "Always" } },
            { "name": "w", "emptyDir": {} }])
        );
    }
}
