//! Description of the machine that runs a benchmark, for its report.

/// Returns the number of CPUs that this process may use.
pub(crate) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Describes the number and model of the CPUs, the kernel and the load of the last minute in one line.
pub(crate) fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown CPU");
    let kernel = read("/proc/sys/kernel/osrelease");
    let load = read("/proc/loadavg");
    format!(
        "{} x {}, Linux {}, load {}",
        cpus(),
        model.trim_start_matches([' ', '\t', ':']),
        kernel.trim(),
        load.split(' ').next().unwrap_or("unknown")
    )
}
