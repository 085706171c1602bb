//! Measures contenders in turns, so that a disturbance affects all of them.

use std::{collections::BTreeMap, fmt::Write as _, io, time::Duration};

use super::{
    PairEnd,
    contenders::{Contender, RunningContender},
    traffic,
};

#[derive(Clone, Debug)]
pub struct MeasurementPlan {
    /// Number of measurements of each contender. The figures are medians over the rounds.
    pub rounds: usize,
    /// Duration of each kind of traffic in each round.
    pub time: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MeasuredFigure {
    /// Gbit/s over one TCP connection.
    OneStream,
    /// Gbit/s over four TCP connections.
    FourStreams,
    /// Gbit for each second of CPU time of the tunnel's processes, over one connection.
    OneStreamPerCpu,
    /// The same over four connections.
    FourStreamsPerCpu,
    /// Seconds of CPU time of the tunnel's processes for 10^9 bytes, over one connection.
    CpuPerGigabyte,
    /// Gbit/s in datagrams of 1300 bytes.
    Udp,
    /// Thousands of datagrams of 64 bytes a second.
    SmallDatagrams,
    /// Microseconds of CPU time of the tunnel's processes for each datagram of 64 bytes that
    /// arrived.
    CpuPerSmallDatagram,
    /// Median round-trip time in microseconds.
    RoundTripP50,
    /// 99th percentile of the round-trip time in microseconds.
    RoundTripP99,
}

impl MeasuredFigure {
    /// In the order of the table.
    pub const ALL: [Self; 10] = [
        Self::OneStream,
        Self::FourStreams,
        Self::OneStreamPerCpu,
        Self::FourStreamsPerCpu,
        Self::CpuPerGigabyte,
        Self::Udp,
        Self::SmallDatagrams,
        Self::CpuPerSmallDatagram,
        Self::RoundTripP50,
        Self::RoundTripP99,
    ];

    /// Its name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::OneStream => "TCP, 1 stream, Gbit/s",
            Self::FourStreams => "TCP, 4 streams, Gbit/s",
            Self::OneStreamPerCpu => "Gbit per CPU second, 1 stream",
            Self::FourStreamsPerCpu => "Gbit per CPU second, 4 streams",
            Self::CpuPerGigabyte => "CPU seconds per GB, 1 stream",
            Self::Udp => "UDP of 1300 bytes, Gbit/s",
            Self::SmallDatagrams => "UDP of 64 bytes, thousands/s",
            Self::CpuPerSmallDatagram => "CPU per datagram of 64 bytes, us",
            Self::RoundTripP50 => "round trip P50, us",
            Self::RoundTripP99 => "round trip P99, us",
        }
    }
}

/// The figures of each round, by contender.
#[derive(Clone, Debug)]
pub struct Results {
    contenders: Vec<(&'static str, BTreeMap<MeasuredFigure, Vec<f64>>)>,
}

/// Measures all contenders in turns. Calls `progress` before each step.
pub fn measure_contenders(
    contenders: &[Contender],
    plan: &MeasurementPlan,
    mut progress: impl FnMut(&str),
) -> io::Result<Results> {
    let mut results = Results {
        contenders: contenders
            .iter()
            .map(|contender| (contender.name(), BTreeMap::new()))
            .collect(),
    };
    for round in 0..plan.rounds {
        // Every second round is in reverse order, to vary what runs before each contender.
        let mut order: Vec<usize> = (0..contenders.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for index in order {
            progress(&format!(
                "round {} of {}: {}",
                round + 1,
                plan.rounds,
                contenders[index].name()
            ));
            let open = contenders[index].open()?;
            for (figure, value) in one_round(&open, plan.time)? {
                results.contenders[index]
                    .1
                    .entry(figure)
                    .or_default()
                    .push(value);
            }
        }
    }
    Ok(results)
}

fn one_round(open: &RunningContender, time: Duration) -> io::Result<Vec<(MeasuredFigure, f64)>> {
    let (left, right) = (&open.pair.left, &open.pair.right);
    let server = |port| open.address(PairEnd::Right, port);
    let mut figures = Vec::new();
    // Establishes a session.
    traffic::round_trips(left, right, server(5000), Duration::from_millis(100))?;
    let tcp = [
        (
            1,
            MeasuredFigure::OneStream,
            MeasuredFigure::OneStreamPerCpu,
        ),
        (
            4,
            MeasuredFigure::FourStreams,
            MeasuredFigure::FourStreamsPerCpu,
        ),
    ];
    for (streams, throughput, per_cpu) in tcp {
        let before = open.processor_time()?;
        let achieved = traffic::send_tcp(left, right, server(5001), streams, time)?;
        // The CPU time is that of the whole run, which is a tenth longer than the measured part.
        let used = open.processor_time()?.saturating_sub(before).as_secs_f64() / 1.1;
        figures.push((throughput, achieved.gigabits()));
        if used > 0.0 {
            figures.push((per_cpu, achieved.bytes as f64 * 8e-9 / used));
            if streams == 1 {
                figures.push((
                    MeasuredFigure::CpuPerGigabyte,
                    used / (achieved.bytes as f64 * 1e-9),
                ));
            }
        }
    }
    figures.push((
        MeasuredFigure::Udp,
        traffic::send_udp(left, right, server(5002), 1300, time)?.gigabits(),
    ));
    let before = open.processor_time()?;
    let achieved = traffic::send_udp(left, right, server(5003), 64, time)?;
    let used = open.processor_time()?.saturating_sub(before).as_secs_f64() / 1.1;
    figures.push((MeasuredFigure::SmallDatagrams, achieved.rate() / 1000.0));
    if used > 0.0 && achieved.messages > 0 {
        figures.push((
            MeasuredFigure::CpuPerSmallDatagram,
            used * 1e6 / achieved.messages as f64,
        ));
    }
    let times = traffic::round_trips(left, right, server(5004), time)?;
    for (figure, per_cent) in [
        (MeasuredFigure::RoundTripP50, 50),
        (MeasuredFigure::RoundTripP99, 99),
    ] {
        let at = (times.len() * per_cent / 100).min(times.len().saturating_sub(1));
        figures.extend(times.get(at).map(|time| (figure, time.as_secs_f64() * 1e6)));
    }
    Ok(figures)
}

impl Results {
    /// The median of a figure, if the contender has it.
    pub fn median(&self, contender: &str, figure: MeasuredFigure) -> Option<f64> {
        let (_, figures) = self
            .contenders
            .iter()
            .find(|(name, _)| *name == contender)?;
        median(figures.get(&figure)?)
    }

    /// The median of the ratios to another contender in the same round.
    pub fn ratio(&self, contender: &str, base: &str, figure: MeasuredFigure) -> Option<f64> {
        let of = |wanted: &str| {
            self.contenders
                .iter()
                .find(|(name, _)| *name == wanted)?
                .1
                .get(&figure)
        };
        median(
            &of(contender)?
                .iter()
                .zip(of(base)?)
                .map(|(one, other)| one / other)
                .collect::<Vec<_>>(),
        )
    }

    /// A table in Markdown: medians, and in brackets the ratio to `base`.
    pub fn table(&self, base: &str) -> String {
        let names: Vec<_> = self.contenders.iter().map(|(name, _)| *name).collect();
        let mut text = format!(
            "| median (ratio to {base}) | {} |\n|---|{}\n",
            names.join(" | "),
            "---|".repeat(names.len())
        );
        for figure in MeasuredFigure::ALL {
            let cell =
                |name: &&str| match (self.median(name, figure), self.ratio(name, base, figure)) {
                    (Some(value), Some(ratio)) if *name != base => {
                        format!("{value:.2} ({ratio:.2})")
                    }
                    (Some(value), _) => format!("{value:.2}"),
                    _ => String::new(),
                };
            let cells: Vec<_> = names.iter().map(cell).collect();
            let _ = writeln!(text, "| {} | {} |", figure.name(), cells.join(" | "));
        }
        text
    }
}

fn median(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    Some(if values.len() % 2 == 1 {
        *values.get(middle)?
    } else {
        f64::midpoint(*values.get(middle.checked_sub(1)?)?, *values.get(middle)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_what_half_of_the_rounds_reach() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn the_table_shows_medians_and_ratios_of_the_same_round() {
        let figures =
            |values: &[f64]| BTreeMap::from([(MeasuredFigure::OneStream, values.to_vec())]);
        let results = Results {
            contenders: vec![
                ("liqo", figures(&[2.0, 8.0])),
                ("wireguard-go", figures(&[1.0, 4.0])),
            ],
        };
        assert_eq!(
            results.ratio("liqo", "wireguard-go", MeasuredFigure::OneStream),
            Some(2.0)
        );
        assert!(
            results
                .table("wireguard-go")
                .contains("| TCP, 1 stream, Gbit/s | 5.00 (2.00) | 2.50 |")
        );
    }
}
