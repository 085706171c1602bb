//! The times of containers. Controllers at home compare them with their own clock: a Job whose pod
//! failed in the future would wait for that long before it creates the next one. So a time that has
//! not come yet becomes the time at which it was first read.

use jiff::Timestamp;
use serde_json::Value;

use crate::json::text;
use crate::pod::local_status::stamp;

const STATES: [&str; 4] = [
    "/state/running",
    "/state/terminated",
    "/lastState/running",
    "/lastState/terminated",
];
const TIMES: [&str; 2] = ["startedAt", "finishedAt"];

/// A container's status without times in the future. `shown` is what the local pod shows of that
/// container.
pub(super) fn not_in_the_future(mut status: Value, shown: Option<&Value>, now: Timestamp) -> Value {
    for state in STATES {
        // Without an ID nobody knows whether the time is of the container that is shown.
        let Some(id) = id(&status, state).map(str::to_owned) else {
            continue;
        };
        for time in TIMES {
            let Some(theirs) = at(&status, state, time) else {
                continue;
            };
            let before = shown
                .and_then(|shown| shown_time(shown, &id, time))
                .filter(|before| *before < theirs);
            let believed = before.unwrap_or_else(|| theirs.min(now));
            if let (Some(value), true) = (
                status.pointer_mut(&format!("{state}/{time}")),
                believed != theirs,
            ) {
                *value = stamp(believed);
            }
        }
    }
    status
}

/// The ID of the container that a state is about.
fn id<'a>(status: &'a Value, state: &str) -> Option<&'a str> {
    let inner = status.pointer(state)?;
    let own = text(inner, "/containerID");
    if state.starts_with("/state") {
        own.or_else(|| text(status, "/containerID"))
    } else {
        own
    }
}

fn at(status: &Value, state: &str, time: &str) -> Option<Timestamp> {
    text(status, &format!("{state}/{time}"))?.parse().ok()
}

/// A time of the container with this ID, in whichever state it is shown.
fn shown_time(shown: &Value, container: &str, time: &str) -> Option<Timestamp> {
    STATES
        .into_iter()
        .filter(|state| id(shown, state) == Some(container))
        .find_map(|state| at(shown, state, time))
}
