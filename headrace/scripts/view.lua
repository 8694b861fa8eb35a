-- Read jobs: per id {record as a flat list, Celery result or '', place in the queue or 0; of a scheduled job when it
-- is due, in us}, or 0 where unknown.
-- KEYS: none. ARGV: 1 queue prefix, 2 with results (1 or 0), then ids. The place is approximate: what was put back
-- to the head after this job was queued is counted, cancelled neighbours behind it are not subtracted.
local function place_of(f)
  local queue, s = ARGV[1] .. f['m'], STEP_INDEX[f['p']] or 1
  local out = redis.call('HGET', 'hr:count:' .. queue, 'out' .. STEPS[s])
  local place = tonumber(f['n']) - (tonumber(out or '0') or 0)
  for better = 1, s - 1 do place = place + redis.call('LLEN', list_of(queue, better)) end
  return math.max(1, place)
end

local function without(record, field)
  local rest = {}
  for k = 1, #record, 2 do
    if record[k] ~= field then rest[#rest + 1], rest[#rest + 2] = record[k], record[k + 1] end
  end
  return rest
end

local answer = {}
for i = 3, #ARGV do
  local id = ARGV[i]
  local record = redis.pcall('HGETALL', JOB .. id)
  local f = {}
  for k = 1, #record, 2 do f[record[k]] = record[k + 1] end
  if not f['s'] then
    answer[#answer + 1] = 0
  else
    local place, meta = 0, ''
    if f['s'] == 'q' and f['n'] and f['m'] then
      place = place_of(f)
    elseif f['s'] == 'd' and f['m'] then
      local due = redis.pcall('ZSCORE', 'hr:delayed:' .. ARGV[1] .. f['m'], id)
      place = type(due) == 'string' and tonumber(due) or 0
    elseif ARGV[2] == '1' and (f['s'] == 's' or f['s'] == 'f') then
      meta = not f['r'] and redis.call('GET', META .. id) or ''
    end
    if f['r'] and ARGV[2] ~= '1' then record = without(record, 'r') end
    answer[#answer + 1] = {record, meta, place}
  end
end
return answer
