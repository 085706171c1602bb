//! The faults of a story, and their end.

use std::time::Duration;

use liqo_simulation::{Faults, Link};

use super::{MILAN, ROME, Story, TURIN, Third};
use crate::internet::WireFaults;

impl Story {
    fn fault(&mut self, kind: &'static str, event: &str) {
        *self.faults.entry(kind).or_default() += 1;
        self.tell(format!("{kind}: {event}"));
    }

    /// From now on, requests of the managers go wrong.
    pub(super) fn begin_faults(&mut self) {
        let mut up_to = |end| 1 + u32::try_from(self.below(end)).unwrap();
        let bad = Faults {
            delay: Duration::from_millis(500),
            lost_requests: up_to(20),
            lost_answers: up_to(20),
            late_requests: up_to(10),
            lateness: Duration::from_secs(20),
            refusals: up_to(30),
            broken_watches: up_to(30),
        };
        let bad_wire = WireFaults {
            broken: up_to(40),
            late: up_to(20),
            lateness: Duration::from_secs(20),
        };
        for manager in self
            .world
            .clusters
            .iter()
            .flat_map(|cluster| &cluster.managers)
        {
            manager.link.set_faults(bad);
        }
        self.world.internet.set_faults(bad_wire);
    }

    pub(super) fn kill_manager(&mut self) {
        let (cluster, number) = (self.cluster(), self.draws.one_of(&[1, 2]));
        if self.dead.contains(&(cluster, number)) {
            return;
        }
        self.world.clusters[cluster].manager(number).kill();
        self.dead.push((cluster, number));
        self.fault(
            "process killed",
            &format!("manager-{number} of {}", self.world.clusters[cluster].name),
        );
    }

    pub(super) fn revive_managers(&mut self) {
        for (cluster, number) in std::mem::take(&mut self.dead) {
            self.world.clusters[cluster].restart_manager(number);
            self.tell(format!(
                "manager-{number} of {} starts again",
                self.world.clusters[cluster].name
            ));
        }
    }

    /// A manager ends itself if it could not renew its lease in time, and the kubelet starts it
    /// again. Those that were killed stay dead.
    pub(super) fn restart_ended(&mut self) {
        for (index, cluster) in self.world.clusters.iter_mut().enumerate() {
            for number in 1..=2 {
                if cluster.manager(number).has_ended() && !self.dead.contains(&(index, number)) {
                    cluster.restart_manager(number);
                }
            }
        }
    }

    /// A manager hears nothing from its own API server for a while, shorter or longer than its
    /// lease.
    pub(super) fn cut_off_manager(&mut self) {
        let (cluster, number) = (self.cluster(), self.draws.one_of(&[1, 2]));
        let (link, time) = (
            self.world.clusters[cluster].manager(number).link.clone(),
            self.draws.up_to(Duration::from_secs(15)),
        );
        link.cut();
        tokio::spawn(async move {
            tokio::time::sleep(time).await;
            link.heal();
        });
        self.fault(
            "no API server",
            &format!(
                "manager-{number} of {} for {time:?}",
                self.world.clusters[cluster].name
            ),
        );
    }

    /// Nothing arrives any more at a provider from a consumer, or back.
    pub(super) fn cut(&mut self) {
        let (consumer, provider) = self.draws.one_of(match self.third {
            Third::IsAbsent => &[(ROME, MILAN)],
            Third::Lends => &[(ROME, MILAN), (ROME, TURIN)],
            Third::Borrows => &[(ROME, MILAN), (TURIN, MILAN)],
            Third::IsBehind => &[(ROME, MILAN), (MILAN, TURIN)],
        });
        let (consumer, provider) = (
            &self.world.clusters[consumer],
            &self.world.clusters[provider],
        );
        let is_there = self.draws.per_mille(500);
        for number in [1, 2] {
            let (manager, server) = (consumer.address(number), provider.address(0));
            let (from, to) = if is_there {
                (manager, server)
            } else {
                (server, manager)
            };
            self.world.internet.cut(from, to);
        }
        let (from, to) = if is_there {
            (&consumer.name, &provider.name)
        } else {
            (&provider.name, &consumer.name)
        };
        let event = format!("nothing arrives from {from} at {to}");
        self.fault("partition", &event);
    }

    pub(super) fn heal(&mut self) {
        self.world.internet.heal();
        self.tell("the network heals");
    }

    pub(super) fn forget_history(&mut self) {
        let index = self.cluster();
        self.world.clusters[index].server.compact();
        let name = self.world.clusters[index].name.clone();
        self.fault("history forgotten", &name);
    }

    /// A node of the provider loses its power for a while.
    pub(super) fn cut_power(&mut self) {
        let milan = &self.world.clusters[MILAN];
        let node = self.draws.one_of(&["milan-1", "milan-2"]);
        let (settings, time) = (
            milan.settings.clone(),
            self.draws.up_to(Duration::from_mins(2)),
        );
        settings.send_modify(|settings| _ = settings.nodes_without_power.insert(node.to_owned()));
        tokio::spawn(async move {
            tokio::time::sleep(time).await;
            settings.send_modify(|settings| _ = settings.nodes_without_power.remove(node));
        });
        self.fault("node without power", &format!("{node} for {time:?}"));
    }

    pub(super) fn end_faults(&mut self) {
        self.revive_managers();
        self.world.internet.heal();
        self.world.internet.set_faults(WireFaults::default());
        for (kind, count) in self.world.internet.counts() {
            *self.faults.entry(kind).or_default() += count;
        }
        for cluster in &mut self.world.clusters {
            cluster
                .settings
                .send_modify(|settings| settings.nodes_without_power.clear());
            let links = cluster.managers.iter().map(|manager| &manager.link);
            links
                .clone()
                .for_each(|link| link.set_faults(Faults::default()));
            for (kind, count) in links.chain(&cluster.former_links).flat_map(Link::counts) {
                *self.faults.entry(kind).or_default() += count;
            }
        }
        self.restart_ended();
        self.tell("all faults end");
    }
}
