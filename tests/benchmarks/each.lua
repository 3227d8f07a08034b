-- wrk script: send the whole requests of a file one after the other, from a given one on, and again from the first.
-- Each request of the file stands behind a line that says how many bytes it has. All are read before wrk's clock starts.
done = require("summary")

local requests = {}
local file = assert(io.open(os.getenv("REQUESTS_FILE"), "rb"))
for line in file:lines() do
  requests[#requests + 1] = file:read(tonumber(line))
end
file:close()
local count = #requests
local next_one = tonumber(os.getenv("FIRST")) % count

function request()
  local index = next_one + 1
  next_one = index % count
  return requests[index]
end
