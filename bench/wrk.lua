-- Sends one request again and again, its open numbers filled in (see Template in bench/calls.py): the same bytes as our own
-- generator sends. One thread only: a second one would use the same numbers.
-- Arguments: the file that holds the request, and how many items a call carries.

local parts = {}    -- literal text, and in between what is open: a number, or "lane"
local filled = {}
local items, lanes = 1, 16
local call = 0

function init(args)
  local file = assert(io.open(args[1], "rb"))
  local text = file:read("*a")
  file:close()
  items = tonumber(args[2])
  local from = 1
  while true do
    local first, last, place = text:find("<<(%w+)>>", from)
    if not first then break end
    parts[#parts + 1] = text:sub(from, first - 1)
    parts[#parts + 1] = tonumber(place) or place
    from = last + 1
  end
  parts[#parts + 1] = text:sub(from)
  for at = 1, #parts, 2 do filled[at] = parts[at] end
end

function request()
  local base = call * items
  for at = 2, #parts, 2 do
    local place = parts[at]
    if place == "lane" then
      filled[at] = string.format("%02d", call % lanes)
    else
      filled[at] = string.format("%09d", base + place)
    end
  end
  call = call + 1
  return table.concat(filled)
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    'OUTCOME {"requests":%d,"duration_us":%d,"refused":{"status 400 or above":%d,"connections refused":%d,'
      .. '"failed reads":%d,"failed writes":%d,"answers after 10 s":%d},"p50_us":%.0f,"p99_us":%.0f,"max_us":%.0f}\n',
    summary.requests, summary.duration, errors.status, errors.connect, errors.read, errors.write, errors.timeout,
    latency:percentile(50), latency:percentile(99), latency.max))
end
