//! Pods of Liqo that cannot get their image, and what to do about it.
//!
//! `install` stops waiting for such a pod once a second pull of its image failed: the first failure
//! may be a registry that was busy. `doctor` has the same words and the same advice.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::api::core::v1::{Container, Pod};

use crate::{cluster::full_name, inspect::container_statuses};

/// The advice for a node that cannot get an image of Liqo.
pub const ADVICE: &str = "push both images of Liqo to a registry that the nodes reach, and run \
     `liqoctl install --set global.imageRegistry=...`, or name each of them: \
     `liqoctl install --set controllerManager.image=... --set fabric.image=...`. \
     Nodes of kind, k3d and minikube take images without a registry. \
     docs/how-to/get-the-images.md says how";

/// Failed pulls of one image by one pod, after which nobody expects the next one to succeed.
const MAX_FAILED_PULLS: u32 = 2;

/// An image that a pod waits for, and that its node does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingImage {
    /// Namespace and name of the pod.
    pub pod: String,
    pub image: String,
    pub problem: ImageProblem,
    /// The words of the kubelet.
    pub message: String,
}

/// The kubelet's reason why a container has no image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageProblem {
    ErrImagePull,
    /// The kubelet waits before the next pull.
    ImagePullBackOff,
    InvalidImageName,
    /// The container forbids pulls.
    ErrImageNeverPull,
}

impl ImageProblem {
    fn parse(reason: &str) -> Option<Self> {
        match reason {
            "ErrImagePull" => Some(Self::ErrImagePull),
            "ImagePullBackOff" => Some(Self::ImagePullBackOff),
            "InvalidImageName" => Some(Self::InvalidImageName),
            "ErrImageNeverPull" => Some(Self::ErrImageNeverPull),
            _ => None,
        }
    }

    /// Whether the kubelet will try to pull the image again.
    fn is_tried_again(self) -> bool {
        matches!(self, Self::ErrImagePull | Self::ImagePullBackOff)
    }
}

impl fmt::Display for MissingImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            pod,
            image,
            problem,
            message,
        } = self;
        write!(
            f,
            "pod {pod} cannot get image {image}: {problem:?}: {message}"
        )
    }
}

/// The image that a pod cannot get; nothing if the pod has its images, or waits for another thing.
pub fn missing_image(pod: &Pod) -> Option<MissingImage> {
    container_statuses(pod).find_map(|status| {
        let waiting = status.state.as_ref()?.waiting.as_ref()?;
        Some(MissingImage {
            pod: full_name(pod),
            image: wanted_image(pod, &status.name)
                .unwrap_or(&status.image)
                .to_owned(),
            problem: ImageProblem::parse(waiting.reason.as_deref()?)?,
            message: waiting.message.clone().unwrap_or_default(),
        })
    })
}

/// The image of a container in the spec. The status may show another name for it.
fn wanted_image<'a>(pod: &'a Pod, container: &str) -> Option<&'a String> {
    let wanted = pod
        .spec
        .as_ref()?
        .containers
        .iter()
        .find(|one| one.name == container)?;
    wanted.image.as_ref()
}

/// The missing images of those pods that run these containers. Others are of an earlier version or
/// are ending: it does not matter what they wait for.
pub fn missing_images_of_version<'a>(
    pods: impl IntoIterator<Item = &'a Pod>,
    containers: &[Container],
) -> Vec<MissingImage> {
    pods.into_iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none())
        .filter_map(missing_image)
        .filter(|missing| {
            containers
                .iter()
                .any(|container| container.image.as_ref() == Some(&missing.image))
        })
        .collect()
}

/// What the missing images mean for a command that waits for the pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PullOutlook {
    NothingMissing,
    /// The kubelet tries again; what it waits for.
    TriedAgain(String),
    /// Waiting longer will not help; what is missing, and what to do.
    Hopeless(String),
}

/// The failed pulls that a command has seen while it waits.
#[derive(Debug, Default)]
pub struct FailedPulls {
    by_pod: BTreeMap<String, FailedPull>,
}

#[derive(Debug)]
struct FailedPull {
    times: u32,
    /// The last look.
    last: ImageProblem,
    /// The last failure. Its words say more than those of the wait for the next pull.
    shown: MissingImage,
}

impl FailedPulls {
    /// Counts the pulls that failed since the last look.
    pub fn observe(&mut self, missing: Vec<MissingImage>) -> PullOutlook {
        let mut outlook = PullOutlook::NothingMissing;
        for missing in missing {
            let failed = self.count(missing);
            if failed.times >= MAX_FAILED_PULLS || !failed.last.is_tried_again() {
                return PullOutlook::Hopeless(format!("{}. What to do: {ADVICE}", failed.shown));
            }
            if outlook == PullOutlook::NothingMissing {
                outlook = PullOutlook::TriedAgain(failed.shown.to_string());
            }
        }
        outlook
    }

    /// A pull failed if the kubelet said something else at the last look. It may have failed before
    /// the first look, too: then the kubelet waits already.
    fn count(&mut self, missing: MissingImage) -> &FailedPull {
        let problem = missing.problem;
        let failed = self
            .by_pod
            .entry(missing.pod.clone())
            .or_insert_with(|| FailedPull {
                times: 1,
                last: problem,
                shown: missing.clone(),
            });
        if problem == ImageProblem::ErrImagePull {
            if failed.last != ImageProblem::ErrImagePull {
                failed.times += 1;
            }
            failed.shown = missing;
        }
        failed.last = problem;
        failed
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const IMAGE: &str = "localhost/liqo/fabric:0.1.0";

    fn pod(name: &str, reason: &str) -> Pod {
        let waiting = json!({ "reason": reason, "message": format!("{reason} of {name}") });
        serde_json::from_value(json!({
            "metadata": { "name": name, "namespace": "liqo" },
            "spec": { "containers": [{ "name": "c", "image": IMAGE }] },
            "status": { "containerStatuses": [
                { "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": { "waiting": waiting } },
            ] },
        }))
        .unwrap()
    }

    fn missing(name: &str, reason: &str) -> Vec<MissingImage> {
        missing_image(&pod(name, reason)).into_iter().collect()
    }

    /// The outlook after the kubelet showed these reasons, one a look.
    fn outlook_after(reasons: &[&str]) -> PullOutlook {
        let mut pulls = FailedPulls::default();
        let mut outlook = PullOutlook::NothingMissing;
        for reason in reasons {
            outlook = pulls.observe(missing("m", reason));
        }
        outlook
    }

    #[test]
    fn one_failed_pull_is_no_reason_to_give_up_and_the_second_one_is() {
        let tried_again = |reasons: &[&str]| {
            matches!(outlook_after(reasons), PullOutlook::TriedAgain(text)
                if text == format!("pod liqo/m cannot get image {IMAGE}: ErrImagePull: ErrImagePull of m"))
        };
        assert!(tried_again(&["ErrImagePull"]));
        assert!(tried_again(&["ErrImagePull", "ErrImagePull"]));
        assert!(
            tried_again(&["ErrImagePull", "ImagePullBackOff"]),
            "the same words, so that nobody reads them twice"
        );
        let PullOutlook::Hopeless(text) =
            outlook_after(&["ErrImagePull", "ImagePullBackOff", "ErrImagePull"])
        else {
            panic!("it waits for a third pull");
        };
        let words = [
            "liqo/m",
            IMAGE,
            "ErrImagePull of m",
            "--set controllerManager.image=",
            "--set fabric.image=",
            "--set global.imageRegistry=",
            "kind, k3d and minikube",
        ];
        for word in words {
            assert!(text.contains(word), "{word:?} is not in: {text}");
        }
    }

    #[test]
    fn a_pull_that_failed_before_the_first_look_counts_and_the_next_one_decides() {
        assert!(matches!(
            outlook_after(&["ImagePullBackOff", "ImagePullBackOff"]),
            PullOutlook::TriedAgain(_)
        ));
        assert!(matches!(
            outlook_after(&["ImagePullBackOff", "ErrImagePull"]),
            PullOutlook::Hopeless(_)
        ));
    }

    #[test]
    fn failed_pulls_of_two_pods_are_counted_apart() {
        let mut pulls = FailedPulls::default();
        pulls.observe(missing("one", "ErrImagePull"));
        pulls.observe(missing("one", "ImagePullBackOff"));
        let other = pulls.observe(missing("other", "ErrImagePull"));
        assert!(matches!(other, PullOutlook::TriedAgain(_)), "{other:?}");
        assert_eq!(pulls.observe(Vec::new()), PullOutlook::NothingMissing);
    }

    #[test]
    fn an_image_that_nobody_will_pull_is_told_at_once() {
        for reason in ["InvalidImageName", "ErrImageNeverPull"] {
            let outlook = outlook_after(&[reason]);
            assert!(matches!(outlook, PullOutlook::Hopeless(_)), "{outlook:?}");
        }
    }

    #[test]
    fn only_pods_of_the_present_version_that_wait_for_an_image_count() {
        let containers = |image: &str| {
            vec![Container {
                image: Some(image.to_owned()),
                ..Container::default()
            }]
        };
        let found =
            |pod: &Pod, image: &str| missing_images_of_version([pod], &containers(image)).len();
        let pulling = pod("m", "ErrImagePull");
        assert_eq!(found(&pulling, IMAGE), 1);
        assert_eq!(found(&pulling, "localhost/liqo/fabric:0.2.0"), 0);
        assert_eq!(found(&pod("m", "CrashLoopBackOff"), IMAGE), 0);
        let mut ending = pulling;
        ending.metadata.deletion_timestamp =
            Some(liqo_api::Time("2026-01-01T00:00:00Z".parse().unwrap()));
        assert_eq!(found(&ending, IMAGE), 0);
    }
}
