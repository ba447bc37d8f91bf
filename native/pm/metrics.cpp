#include "metrics.hpp"

namespace stepscope::pm {

// The `_realtime` variants of the tensor pipes, because the others take three passes on GH100.
// Units as in `gpu_rates.py`: fractions from 0 to 1, and bytes per second. A read over PCIe counts
// as received.
const std::vector<Metric> METRICS = {
    {"sm_active", {"sm__cycles_active.avg.pct_of_peak_sustained_elapsed"}, 0.01, false},
    {"tensor_active",
     {"sm__pipe_tensor_cycles_active_realtime.avg.pct_of_peak_sustained_elapsed"},
     0.01,
     false},
    {"dram_active",
     {"dram__read_throughput.avg.pct_of_peak_sustained_elapsed",
      "dram__write_throughput.avg.pct_of_peak_sustained_elapsed"},
     0.01,
     false},
    {"dram_active",
     {"dramc__read_throughput.avg.pct_of_peak_sustained_elapsed",
      "dramc__write_throughput.avg.pct_of_peak_sustained_elapsed"},
     0.01,
     false},
    {"nvlink_rx_bytes_per_s", {"nvlrx__bytes.sum"}, 1.0, true},
    {"nvlink_tx_bytes_per_s", {"nvltx__bytes.sum"}, 1.0, true},
    {"pcie_rx_bytes_per_s", {"pcie__read_bytes.sum"}, 1.0, true},
    {"pcie_tx_bytes_per_s", {"pcie__write_bytes.sum"}, 1.0, true},
    {"pcie_rx_bytes_per_s", {"PCI.TriageCompute.pcie__read_bytes.sum"}, 1.0, true},   // GB100
    {"pcie_tx_bytes_per_s", {"PCI.TriageCompute.pcie__write_bytes.sum"}, 1.0, true},  // GB100
    {"sm_clock_mhz", {"gpc__cycles_elapsed.avg.per_second"}, 1e-6, false},
};

std::vector<const char*> Metric::counters() const {
    std::vector<const char*> found{parts[0]};
    if (parts[1] != nullptr) found.push_back(parts[1]);
    return found;
}

}  // namespace stepscope::pm
