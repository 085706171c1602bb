//! The times of containers. Controllers at home compare them with their own clock: a Job whose pod
//! failed in the future would wait for that long before it creates the next one. So a time that has
//! not come yet becomes the time at which it was first read.

use jiff::Timestamp;
use serde_json::Value;

use crate::json::text_at;
use crate::pod::local_status::seconds_timestamp;

const STATES: [&str; 4] = [
    "/state/running",
    "/state/terminated",
    "/lastState/running",
    "/lastState/terminated",
];
const TIMES: [&str; 2] = ["startedAt", "finishedAt"];

/// A container's status without times in the future. `shown` is what the local pod shows of that
/// container.
pub(super) fn without_future_times(
    mut status: Value,
    shown: Option<&Value>,
    now: Timestamp,
) -> Value {
    for state in STATES {
        // Without an ID nobody knows whether the time is of the container that is shown.
        let Some(id) = container_id(&status, state).map(str::to_owned) else {
            continue;
        };
        for time in TIMES {
            let Some(theirs) = time_at(&status, state, time) else {
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
                *value = seconds_timestamp(believed);
            }
        }
    }
    status
}

/// The ID of the container that a state is about.
fn container_id<'a>(status: &'a Value, state: &str) -> Option<&'a str> {
    let inner = status.pointer(state)?;
    let own = text_at(inner, "/containerID");
    if state.starts_with("/state") {
        own.or_else(|| text_at(status, "/containerID"))
    } else {
        own
    }
}

fn time_at(status: &Value, state: &str, time: &str) -> Option<Timestamp> {
    text_at(status, &format!("{state}/{time}"))?.parse().ok()
}

/// A time of the container with this ID, in whichever state it is shown.
fn shown_time(shown: &Value, container: &str, time: &str) -> Option<Timestamp> {
    STATES
        .into_iter()
        .filter(|state| container_id(shown, state) == Some(container))
        .find_map(|state| time_at(shown, state, time))
}
