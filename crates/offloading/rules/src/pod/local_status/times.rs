//! The times of containers. Controllers at home compare them with their own clock: a Job whose pod
//! failed in the future would wait for that long before it creates the next one. So a time that has
//! not come yet becomes the time at which it was first read.

use jiff::Timestamp;
use serde_json::Value;

use crate::pod::local_status::seconds_timestamp;
use crate::views::ContainerStatusView;

/// A state in the status of a container.
#[derive(Clone, Copy)]
struct StateField {
    /// Whether it is the present state or the last one.
    field: &'static str,
    kind: &'static str,
}

const PRESENT: &str = "state";
const LAST: &str = "lastState";
const STATES: [StateField; 4] = [
    StateField::new(PRESENT, "running"),
    StateField::new(PRESENT, "terminated"),
    StateField::new(LAST, "running"),
    StateField::new(LAST, "terminated"),
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
        let Some(id) = state.container_id(&status).map(str::to_owned) else {
            continue;
        };
        for time in TIMES {
            let Some(theirs) = state.time(&status, time) else {
                continue;
            };
            let before = shown
                .and_then(|shown| shown_time(shown, &id, time))
                .filter(|before| *before < theirs);
            let believed = before.unwrap_or_else(|| theirs.min(now));
            if let (Some(value), true) = (state.time_mut(&mut status, time), believed != theirs) {
                *value = seconds_timestamp(believed);
            }
        }
    }
    status
}

impl StateField {
    const fn new(field: &'static str, kind: &'static str) -> Self {
        Self { field, kind }
    }

    /// The ID of the container that it is about.
    fn container_id(self, status: &Value) -> Option<&str> {
        let inner = status.get(self.field)?.get(self.kind)?;
        let own = ContainerStatusView::of(inner).container_id();
        if self.field == PRESENT {
            own.or_else(|| ContainerStatusView::of(status).container_id())
        } else {
            own
        }
    }

    fn time(self, status: &Value, time: &str) -> Option<Timestamp> {
        let said = status.get(self.field)?.get(self.kind)?.get(time)?;
        said.as_str()?.parse().ok()
    }

    fn time_mut<'a>(self, status: &'a mut Value, time: &str) -> Option<&'a mut Value> {
        status
            .get_mut(self.field)?
            .get_mut(self.kind)?
            .get_mut(time)
    }
}

/// A time of the container with this ID, in whichever state it is shown.
fn shown_time(shown: &Value, container: &str, time: &str) -> Option<Timestamp> {
    STATES
        .into_iter()
        .filter(|state| state.container_id(shown) == Some(container))
        .find_map(|state| state.time(shown, time))
}
