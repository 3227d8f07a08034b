-- wrk script: POST one file again and again, report as one line of JSON (times in microseconds).
local file = assert(io.open(os.getenv("BODY_FILE"), "rb"))
wrk.method = "POST"
wrk.body = file:read("*a")
file:close()
wrk.headers["Content-Type"] = os.getenv("CONTENT_TYPE")
wrk.headers["Accept"] = os.getenv("CONTENT_TYPE")
wrk.headers["Inference-Header-Content-Length"] = os.getenv("JSON_BYTES") -- nil, so none, but for inferences

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '\n{"requests":%d,"duration":%d,"mean":%.3f,"max":%.3f,"p50":%.3f,"p99":%.3f,'
      .. '"errors":{"not 2xx":%d,"connect":%d,"read":%d,"write":%d,"timeout":%d}}\n',
    summary.requests, summary.duration, latency.mean, latency.max, latency:percentile(50), latency:percentile(99),
    errors.status, errors.connect, errors.read, errors.write, errors.timeout))
end
