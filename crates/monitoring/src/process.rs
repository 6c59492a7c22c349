//! Numbers of the process itself, by the names that all exporters use.

use crate::families;
use crate::scrape::Scrape;
use farpool_host::Machine;
use farpool_transport::Tls;
use std::time::{Duration, SystemTime};

/// Adds what every program shows: its version, its events, its certificate, and the process itself.
pub fn measure_process(program: &str, tls: Option<&Tls>, into: &mut Scrape) {
    into.set(&families::BUILD_INFO, &[env!("CARGO_PKG_VERSION"), program], 1);
    for (kind, level, count) in Machine::event_counts() {
        into.set(&families::EVENTS, &[level.word(), kind], count);
    }
    if let Some(tls) = tls {
        let end = tls.not_after();
        into.set(&families::CERTIFICATE_END, &[&tls.identity().to_string()], end);
    }
    into.set_real(&families::SPUN, &[], farpool_host::waiting::spun_ns() as f64 / 1e9);
    let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    into.set_real(&families::PROCESS_CPU, &[], cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9);
    // Facts that this system does not have are left out.
    if let Some(bytes) = resident_bytes() {
        into.set(&families::PROCESS_MEMORY, &[], bytes);
    }
    if let Some(start) = start() {
        into.set_real(&families::PROCESS_START, &[], start.as_secs_f64());
    }
    if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
        // The directory itself is open while it is read.
        into.set(&families::PROCESS_FILES, &[], (files.count() as u64).saturating_sub(1));
    }
}

/// Ticks per second in which `/proc` tells times: Linux has this value on all processors that we run on.
const TICKS: f64 = 100.0;

fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

/// Returns the time at which this process was started, since 1970.
fn start() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is the name of the program, in parentheses, and may contain anything. The start is field 22.
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks = fields.split_whitespace().nth(22 - 3)?.parse::<u64>().ok()?;
    boot_time()?.checked_add(Duration::from_secs_f64(ticks as f64 / TICKS))
}

/// Returns the time at which this host was started, since 1970.
fn boot_time() -> Option<Duration> {
    let uptime = std::fs::read_to_string("/proc/uptime").ok()?;
    let uptime = uptime.split_whitespace().next()?.parse::<f64>().ok()?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?;
    now.checked_sub(Duration::try_from_secs_f64(uptime).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scrape::Format;

    #[test]
    fn process_is_measured_by_what_the_system_says() {
        let mut scrape = Scrape::default();
        measure_process("test", None, &mut scrape);
        let text = scrape.write(Format::Prometheus);
        let value = |name: &str| -> f64 {
            let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).expect(name);
            line.rsplit(' ').next().expect("a value").parse().expect("a number")
        };
        assert!(value("process_resident_memory_bytes") > 1e6, "{text}");
        assert!(value("process_open_fds") >= 3.0);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a time").as_secs_f64();
        let start = value("process_start_time_seconds");
        assert!(start > 1.7e9 && start < now + 1.0, "{start}, {now}");
        assert!(text.contains("program=\"test\""));
    }
}
