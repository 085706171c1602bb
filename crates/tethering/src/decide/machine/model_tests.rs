//! A model of a tethered cluster and its peer, explored completely: every order of looks, writes,
//! messages, crashes of the manager, power cuts on either side, cuts of the network, stalled former
//! leaders, and decisions of both administrators.
//!
//! What counts in a stored deadline is how far away it is, so the model stores that, and the number
//! of worlds is finite. Time passes in steps after which every deadline has passed; between them
//! any number of other things may happen, or none. One pod shows what happens to workloads: its
//! controller creates another one only when the former one is gone.

use std::collections::{HashSet, VecDeque};

use liqo_api::TetheringState::{self, Autonomous, Releasing, Tethered};

use super::{
    tests::{at, cluster, facts},
    *,
};

/// The stored status, without what decides nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Stored {
    state: TetheringState,
    has_peer: bool,
    /// Seconds to the deadline.
    left: Option<i64>,
    reason: TetheringReasonCode,
}

/// Reasons that later decisions read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum TetheringReasonCode {
    Silent,
    Refused,
    Other,
}

impl Stored {
    const NEVER: Self = Self {
        state: Autonomous,
        has_peer: false,
        left: None,
        reason: TetheringReasonCode::Other,
    };

    fn of(status: &TetheringStatus) -> Self {
        let reason = match TetheringReason::parse(&status.reason) {
            Some(TetheringReason::PeerSilent) => TetheringReasonCode::Silent,
            Some(
                TetheringReason::RefusedByPeer
                | TetheringReason::EndedByPeer
                | TetheringReason::NotReady,
            ) => TetheringReasonCode::Refused,
            _ => TetheringReasonCode::Other,
        };
        let left = status
            .deadline
            .as_ref()
            .map(|time| time.0.duration_since(at(0)).as_secs());
        Self {
            state: status.state,
            has_peer: status.cluster_id.is_some(),
            left,
            reason,
        }
    }

    fn status(self) -> TetheringStatus {
        let reason = match self.reason {
            TetheringReasonCode::Silent => TetheringReason::PeerSilent,
            TetheringReasonCode::Refused => TetheringReason::RefusedByPeer,
            TetheringReasonCode::Other => TetheringReason::Waiting,
        };
        TetheringStatus {
            state: self.state,
            cluster_id: self.has_peer.then(|| cluster(1)),
            since: Time(at(-1)),
            deadline: self.left.map(|left| Time(at(left))),
            reason: reason.into(),
            message: String::new(),
        }
    }
}

/// The peer's answer, as far as the cluster knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Known {
    NotAsked,
    Waiting,
    Granted,
    Refused,
}

/// The `NamespaceOffloading` of the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Offloaded {
    No,
    Remote,
    Local,
}

/// The object of a pod, and where its containers really run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Bound {
    Nowhere,
    Here,
    There,
    EndingThere,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct PodInWorld {
    bound: Bound,
    runs_here: bool,
    runs_there: bool,
}

/// The contents of a model. Each alone is small enough to be explored completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Model {
    /// The namespace and the pod, with power cuts on both sides.
    Workload,
    /// Leaders that stall before a write, and write when another one leads.
    StalledLeaders,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "they do not depend on each other"
)]
struct World {
    stored: Stored,
    /// A decision of a former leader that stalled before its write; whether the status has changed
    /// since it read it.
    stalled: Option<(Stored, bool)>,
    wish: bool,
    allowed: bool,
    link: bool,
    /// The state of the link, as the manager noticed it.
    contact: PeerContact,
    /// Whether this cluster asks, as the peer last read it.
    asked: bool,
    known: Known,
    up: bool,
    offloaded: Offloaded,
    /// May run only once.
    once: PodInWorld,
}

impl World {
    const START: Self = Self {
        stored: Stored::NEVER,
        stalled: None,
        wish: false,
        allowed: true,
        link: true,
        contact: PeerContact::Heard,
        asked: false,
        known: Known::NotAsked,
        up: true,
        offloaded: Offloaded::No,
        once: PodInWorld {
            bound: Bound::Nowhere,
            runs_here: false,
            runs_there: false,
        },
    };

    fn asks(&self) -> bool {
        self.stored.has_peer && matches!(self.stored.state, TetheringState::Tethering | Tethered)
    }

    fn effects(&self) -> StateEffects {
        StateEffects::of_state(if self.stored.has_peer {
            self.stored.state
        } else {
            Autonomous
        })
    }

    fn decided(&self) -> Option<Stored> {
        let answer = match self.known {
            Known::NotAsked => PeerAnswer::NotAsked,
            Known::Waiting => PeerAnswer::Waiting,
            Known::Granted => PeerAnswer::Granted,
            Known::Refused => PeerAnswer::Refused("no".into()),
        };
        let away = usize::from(matches!(self.once.bound, Bound::There | Bound::EndingThere));
        let facts = MachineFacts {
            answer,
            contact: self.contact,
            away,
            ..facts(self.wish.then_some(1))
        };
        let status = (self.stored != Stored::NEVER).then(|| self.stored.status());
        next_status(status.as_ref(), &facts, at(0))
            .map(|next| Stored::of(&next))
            .filter(|next| *next != self.stored)
    }

    fn write(&self, stored: Stored) -> Self {
        Self {
            stored,
            stalled: self.stalled.map(|(decision, _)| (decision, true)),
            ..*self
        }
    }

    /// One look at what the manager does besides the status: the namespace follows the state, and
    /// pods come home.
    fn converged(&self) -> Option<Self> {
        let tethered = self.effects().peer_decides;
        let is_away = matches!(self.once.bound, Bound::There | Bound::EndingThere);
        let offloaded = match (self.offloaded, tethered) {
            (_, true) => Offloaded::Remote,
            (Offloaded::Remote, false) => Offloaded::Local,
            (Offloaded::Local, false) if !is_away => Offloaded::No,
            (other, false) => other,
        };
        if offloaded != self.offloaded {
            return Some(Self { offloaded, ..*self });
        }
        let comes_home = self.offloaded == Offloaded::Local && self.once.bound == Bound::There;
        comes_home.then_some(Self {
            once: PodInWorld {
                bound: Bound::EndingThere,
                ..self.once
            },
            ..*self
        })
    }

    /// The workload's controller, the schedulers, and the kubelets on both sides.
    fn pod_steps(&self, found: &mut Vec<(&'static str, World)>) {
        let with = |once: PodInWorld| Self { once, ..*self };
        match self.once.bound {
            Bound::Nowhere => {
                // The webhook sends the pod away; where it does not know the namespace yet, the
                // admission policy refuses the pod.
                let bound = match self.offloaded {
                    Offloaded::Remote => Some(Bound::There),
                    Offloaded::No | Offloaded::Local if self.effects().peer_decides => None,
                    Offloaded::No | Offloaded::Local => Some(Bound::Here),
                };
                if let Some(bound) = bound {
                    found.push(("pod is created", with(PodInWorld { bound, ..self.once })));
                }
            }
            Bound::Here if !self.once.runs_here => found.push((
                "runs here",
                with(PodInWorld {
                    runs_here: true,
                    ..self.once
                }),
            )),
            Bound::There if self.link && !self.once.runs_there => {
                found.push((
                    "runs there",
                    with(PodInWorld {
                        runs_there: true,
                        ..self.once
                    }),
                ));
            }
            // The object goes only after the peer said that the containers have ended.
            Bound::EndingThere if self.link => {
                found.push((
                    "ended there",
                    with(PodInWorld {
                        bound: Bound::Nowhere,
                        runs_there: false,
                        ..self.once
                    }),
                ));
            }
            Bound::Here | Bound::There | Bound::EndingThere => {}
        }
    }

    fn later(&self) -> Self {
        let age = |stored: Stored| Stored {
            left: stored.left.map(|_| 0),
            ..stored
        };
        let stalled = self
            .stalled
            .map(|(decision, outdated)| (age(decision), outdated));
        Self {
            stored: age(self.stored),
            stalled,
            ..*self
        }
    }

    /// Returns the steps that happen by themselves as long as the manager runs, in an order that
    /// leaves nothing out.
    fn progress(&self, model: Model) -> Vec<(&'static str, World)> {
        let mut found = Vec::new();
        let heard = if self.link {
            PeerContact::Heard
        } else {
            PeerContact::Silent
        };
        if self.up && self.contact != heard {
            found.push((
                "notices the link",
                Self {
                    contact: heard,
                    ..*self
                },
            ));
        }
        if self.up && self.link && self.asked != self.asks() {
            found.push((
                "the peer reads the question",
                Self {
                    asked: self.asks(),
                    ..*self
                },
            ));
        }
        let known = match (self.asks(), self.asked, self.allowed) {
            (false, ..) => Known::NotAsked,
            (true, false, _) => Known::Waiting,
            (true, true, true) => Known::Granted,
            (true, true, false) => Known::Refused,
        };
        // That nothing is asked needs no peer.
        if self.up && self.known != known && (self.link || known == Known::NotAsked) {
            found.push(("reads the answer", Self { known, ..*self }));
        }
        if self.up {
            found.extend(
                self.decided()
                    .map(|stored| ("decides and writes", self.write(stored))),
            );
        }
        if model == Model::Workload {
            found.extend(
                self.converged()
                    .filter(|_| self.up)
                    .map(|world| ("converges", world)),
            );
            self.pod_steps(&mut found);
        }
        found
    }

    /// Everything that may happen next.
    fn successors(&self, model: Model) -> Vec<(&'static str, World)> {
        let mut found = self.progress(model);
        found.push(("time passes", self.later()));
        found.push((
            "the wish changes",
            Self {
                wish: !self.wish,
                ..*self
            },
        ));
        found.push((
            "the peer's policy changes",
            Self {
                allowed: !self.allowed,
                ..*self
            },
        ));
        found.push((
            "the link changes",
            Self {
                link: !self.link,
                ..*self
            },
        ));
        // A crash and a power cut lose what is in memory; containers start again where their pod is
        // bound.
        if self.up {
            let off = Self {
                up: false,
                contact: PeerContact::Unknown,
                ..*self
            };
            found.push(("manager crashes", off));
            let once = PodInWorld {
                runs_here: false,
                ..self.once
            };
            found.push(("power cut here", Self { once, ..off }));
            if let Some(decision) = self.decided().filter(|_| model == Model::StalledLeaders) {
                found.push((
                    "the leader stalls before its write",
                    Self {
                        stalled: Some((decision, false)),
                        ..*self
                    },
                ));
            }
        } else {
            found.push(("manager starts", Self { up: true, ..*self }));
        }
        if self.once.runs_there {
            found.push((
                "power cut there",
                Self {
                    once: PodInWorld {
                        runs_there: false,
                        ..self.once
                    },
                    ..*self
                },
            ));
        }
        // The API server refuses a write with a version that is not current.
        if let Some((decision, outdated)) = self.stalled {
            let world = Self {
                stalled: None,
                ..*self
            };
            found.push((
                "a stalled leader writes",
                if outdated {
                    world
                } else {
                    world.write(decision)
                },
            ));
        }
        found
    }

    fn check(&self, before: &World, event: &str) {
        assert!(
            !(self.once.runs_here && self.once.runs_there),
            "{event}: a pod runs twice: {before:?} -> {self:?}"
        );
        if self.once.bound == Bound::Here && before.once.bound == Bound::Nowhere {
            assert!(
                !before.effects().peer_decides,
                "{event}: two masters: {before:?} -> {self:?}"
            );
        }
        let (from, to) = (before.stored.state, self.stored.state);
        if from != to {
            let allowed = matches!(
                (from, to),
                (Autonomous, TetheringState::Tethering)
                    | (TetheringState::Tethering, Tethered | Releasing)
                    | (Tethered, Releasing)
                    | (Releasing, Autonomous)
            );
            assert!(allowed, "{event}: {before:?} -> {self:?}");
        }
        if to == Tethered && from != Tethered && event == "decides and writes" {
            assert!(
                before.wish && before.known == Known::Granted,
                "{event}: {before:?} -> {self:?}"
            );
        }
    }
}

/// All worlds that can come to be.
fn reachable(model: Model) -> HashSet<World> {
    let mut known = HashSet::from([World::START]);
    let mut open = VecDeque::from([World::START]);
    while let Some(world) = open.pop_front() {
        for (event, next) in world.successors(model) {
            next.check(&world, event);
            if known.insert(next) {
                open.push_back(next);
            }
        }
    }
    known
}

/// Returns the world that this one becomes if no more faults happen, everything settles between two
/// steps, and nobody changes their mind. Worlds that lead to each other share the result.
fn settle(start: World, model: Model, times: usize) -> World {
    let mut world = start;
    for _ in 0..times {
        let mut steps = 0;
        while let Some((_, next)) = world
            .progress(model)
            .into_iter()
            .find(|(_, next)| *next != world)
        {
            world = next;
            steps += 1;
            assert!(steps < 100, "it does not settle: {start:?} -> {world:?}");
        }
        world = world.later();
    }
    world
}

/// Steps of time until control is where it should be: at the end of a silence, of a release, of a
/// pause and of an attempt, and once more.
const ENOUGH: usize = 5;

/// Checks where each world leads, with this wish, and with a peer that allows it and is reached, or
/// not.
fn check_settled(model: Model, check: impl Fn(&World, &World)) -> HashSet<World> {
    let worlds = reachable(model);
    println!("{model:?}: {} worlds", worlds.len());
    let mut seen = HashSet::new();
    for world in &worlds {
        let repaired = World {
            up: true,
            stalled: None,
            ..*world
        };
        for (wish, allowed, link) in [
            (false, true, true),
            (true, true, false),
            (true, true, true),
            (true, false, true),
        ] {
            let start = World {
                wish,
                allowed,
                link,
                ..repaired
            };
            if seen.insert(start) {
                check(&start, &settle(start, model, ENOUGH));
            }
        }
    }
    worlds
}

fn check_state(start: &World, end: &World) {
    if start.wish && start.allowed && start.link {
        assert_eq!(end.stored.state, Tethered, "{start:?} -> {end:?}");
    } else {
        assert!(
            !end.effects().peer_decides,
            "control is not back: {start:?} -> {end:?}"
        );
    }
    if !start.link || !start.wish {
        assert_eq!(end.stored.state, Autonomous, "{start:?} -> {end:?}");
    }
}

#[test]
fn in_every_world_control_comes_back_and_pods_come_home() {
    let worlds = check_settled(Model::Workload, |start, end| {
        check_state(start, end);
        if end.stored.state != Tethered {
            assert_ne!(
                end.offloaded,
                Offloaded::Remote,
                "new pods leave: {start:?} -> {end:?}"
            );
        }
        if start.link && !start.wish {
            assert_eq!(
                (end.offloaded, end.once.bound),
                (Offloaded::No, Bound::Here),
                "{start:?} -> {end:?}"
            );
        }
    });
    assert!(
        worlds
            .iter()
            .any(|world| world.stored.state == Tethered && world.once.runs_there),
        "the model does something"
    );
    assert!(
        worlds
            .iter()
            .any(|world| world.stored.state == Releasing && world.once.bound == Bound::EndingThere)
    );
}

#[test]
fn a_former_leader_that_stalled_changes_nothing() {
    let worlds = check_settled(Model::StalledLeaders, check_state);
    assert!(
        worlds
            .iter()
            .any(|world| world.stalled.is_some_and(|(_, outdated)| outdated)),
        "the model does something"
    );
}

/// One of two clusters that want to be tethered to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Side {
    stored: Stored,
    wish: bool,
    /// Whether the other side asks, as this side last read it.
    asked_by_other: bool,
    /// Whether it lets the other one, as it answered last.
    grants: bool,
    known: Known,
}

impl Side {
    const START: Self = Self {
        stored: Stored::NEVER,
        wish: false,
        asked_by_other: false,
        grants: false,
        known: Known::NotAsked,
    };

    fn asks(&self) -> bool {
        self.stored.has_peer && matches!(self.stored.state, TetheringState::Tethering | Tethered)
    }

    fn is_autonomous(&self) -> bool {
        self.stored.state == Autonomous
    }

    fn decided(&self) -> Option<Stored> {
        let answer = match self.known {
            Known::NotAsked => PeerAnswer::NotAsked,
            Known::Waiting => PeerAnswer::Waiting,
            Known::Granted => PeerAnswer::Granted,
            Known::Refused => PeerAnswer::Refused("no".into()),
        };
        let obstacle = self.grants.then(|| LocalObstacle {
            reason: TetheringReason::TethersOthers,
            message: String::new(),
        });
        let status = (self.stored != Stored::NEVER).then(|| self.stored.status());
        let facts = MachineFacts {
            obstacle,
            answer,
            ..facts(self.wish.then_some(1))
        };
        next_status(status.as_ref(), &facts, at(0))
            .map(|next| Stored::of(&next))
            .filter(|next| *next != self.stored)
    }
}

#[test]
fn two_clusters_never_control_each_other() {
    let start = [Side::START; 2];
    let mut known = HashSet::from([start]);
    let mut open = VecDeque::from([start]);
    while let Some(sides) = open.pop_front() {
        for me in [0, 1] {
            let (own, other) = (sides[me], sides[1 - me]);
            let with = |side: Side| {
                if me == 0 {
                    [side, other]
                } else {
                    [other, side]
                }
            };
            let left = own.stored.left.map(|_| 0);
            let mut next = vec![
                with(Side {
                    wish: !own.wish,
                    ..own
                }),
                with(Side {
                    stored: Stored { left, ..own.stored },
                    ..own
                }),
                with(Side {
                    asked_by_other: other.asks(),
                    ..own
                }),
                with(Side {
                    grants: own.asked_by_other && own.is_autonomous(),
                    ..own
                }),
            ];
            // The answer that is read is to the present question: the other side read it before it
            // answered.
            let answer = match (own.asks(), other.asked_by_other, other.grants) {
                (false, ..) => Known::NotAsked,
                (true, false, _) => Known::Waiting,
                (true, true, true) => Known::Granted,
                (true, true, false) => Known::Refused,
            };
            next.push(with(Side {
                known: answer,
                ..own
            }));
            next.extend(own.decided().map(|stored| with(Side { stored, ..own })));
            for sides in next {
                let both = sides.iter().all(|side| side.stored.state == Tethered);
                assert!(!both, "two clusters control each other: {sides:?}");
                if known.insert(sides) {
                    open.push_back(sides);
                }
            }
        }
    }
    assert!(
        known.iter().any(|sides| sides[0].stored.state == Tethered),
        "the model does something"
    );
}
