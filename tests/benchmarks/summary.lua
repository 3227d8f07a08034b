-- What the wrk scripts print at the end: the result as one line of JSON (times in microseconds).
return function(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '\n{"requests":%d,"duration":%d,"mean":%.3f,"max":%.3f,"p50":%.3f,"p99":%.3f,'
      .. '"errors":{"not 2xx":%d,"connect":%d,"read":%d,"write":%d,"timeout":%d}}\n',
    summary.requests, summary.duration, latency.mean, latency.max, latency:percentile(50), latency:percentile(99),
    errors.status, errors.connect, errors.read, errors.write, errors.timeout))
end
