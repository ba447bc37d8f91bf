#include "host.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace stepscope::pm {
namespace {

bool has(const std::vector<const Metric*>& chosen, const std::string& name) {
    return std::any_of(chosen.begin(), chosen.end(),
                       [&](const Metric* one) { return name == one->name; });
}

// Adds one more metric, if it fits.
void extend(Chosen& chosen, const Metric& metric, std::unique_ptr<Host> host) {
    std::vector<const char*> counters = chosen.counters;
    for (const char* one : metric.counters()) counters.push_back(one);
    if (!host->add(counters)) {
        chosen.unknown.push_back(metric.name);
        return;
    }
    Bytes config = host->config_image();
    if (host->passes(config) != 1) {
        chosen.other_pass.push_back(metric.name);
        return;
    }
    chosen.metrics.push_back(&metric);
    chosen.counters = std::move(counters);
    chosen.config = std::move(config);
    chosen.host = std::move(host);
}

// A name that was finally taken, or is listed already, is not reported (again).
void tidy(std::vector<std::string>& left_out, const std::vector<const Metric*>& chosen) {
    std::vector<std::string> kept;
    for (const std::string& name : left_out) {
        const bool is_there = std::find(kept.begin(), kept.end(), name) != kept.end();
        if (!is_there && !has(chosen, name)) kept.push_back(name);
    }
    left_out = std::move(kept);
}

}  // namespace

Host::Host(const Library& cupti, const std::string& chip, const std::uint8_t* availability)
    : cupti_(cupti) {
    auto with = params<HostInitialize>();
    if (cupti.version < KNOWS_SINGLE_PASS_SET) with.size = HOST_INITIALIZE_WITHOUT_SET;
    with.type = OF_PM_SAMPLING;
    with.chip = chip.c_str();
    with.availability = availability;
    const Result said = cupti.host_initialize(&with);
    if (said == INVALID_PARAMETER) {
        throw Trouble("this CUPTI (version " + std::to_string(cupti.version) + ") does not know " +
                      chip + ": a newer one may");
    }
    check(said, "cuptiProfilerHostInitialize");
    host_ = with.host;
}

Host::~Host() {
    auto with = params<HostDeinitialize>();
    with.host = host_;
    cupti_.host_deinitialize(&with);
}

bool Host::add(std::vector<const char*> counters) {
    auto with = params<ConfigAddMetrics>();
    with.host = host_;
    with.names = counters.data();
    with.count = counters.size();
    return cupti_.add_metrics(&with) == SUCCESS;
}

Bytes Host::config_image() const {
    auto size = params<ConfigImageSize>();
    size.host = host_;
    check(cupti_.config_image_size(&size), "cuptiProfilerHostGetConfigImageSize");
    Bytes image(size.bytes);
    auto with = params<ConfigImage>();
    with.host = host_;
    with.bytes = image.size();
    with.image = image.data();
    check(cupti_.config_image(&with), "cuptiProfilerHostGetConfigImage");
    return image;
}

std::size_t Host::passes(const Bytes& config) const {
    auto with = params<NumOfPasses>();
    with.bytes = config.size();
    with.image = const_cast<std::uint8_t*>(config.data());
    check(cupti_.num_of_passes(&with), "cuptiProfilerHostGetNumOfPasses");
    return with.passes;
}

void Host::evaluate(const Bytes& data, std::size_t sample, std::vector<const char*>& counters,
                    double* values) const {
    auto with = params<Evaluate>();
    with.host = host_;
    with.image = data.data();
    with.bytes = data.size();
    with.sample = sample;
    with.names = counters.data();
    with.count = counters.size();
    with.values = values;
    check(cupti_.evaluate(&with), "cuptiProfilerHostEvaluateToGpuValues");
}

void Chosen::convert(const std::vector<double>& raw, Sample& sample) const {
    std::fill_n(sample.values, MOST_METRICS, std::numeric_limits<double>::quiet_NaN());
    const double seconds = static_cast<double>(sample.end_ns - sample.start_ns) / 1e9;
    std::size_t at = 0;
    for (std::size_t metric = 0; metric < metrics.size(); ++metric) {
        double sum = 0;
        for (std::size_t left = metrics[metric]->counters().size(); left > 0; --left) {
            sum += raw[at++];
        }
        const double value = sum * metrics[metric]->factor;
        sample.values[metric] = metrics[metric]->is_count ? value / seconds : value;
    }
}

Chosen choose(const Library& cupti, const std::string& chip, const std::uint8_t* availability) {
    Chosen chosen;
    for (const Metric& metric : METRICS) {
        if (has(chosen.metrics, metric.name)) continue;
        extend(chosen, metric, std::make_unique<Host>(cupti, chip, availability));
    }
    tidy(chosen.unknown, chosen.metrics);
    tidy(chosen.other_pass, chosen.metrics);
    if (chosen.metrics.empty()) throw Trouble("CUPTI has none of our metrics for " + chip);
    return chosen;
}

}  // namespace stepscope::pm
