-- @include queues
-- Read jobs. KEYS: none. ARGV: 1 with results (1 or 0), then ids.
-- Returns per id {record as a flat list, Celery result or '', place in the queue or 0 (for a scheduled job when it is due,
-- in us)}, or 0 if it is unknown. The place is approximate; see lib/queues.lua.
local function without(record, field)
  local rest = {}
  for k = 1, #record, 2 do
    if record[k] ~= field then rest[#rest + 1], rest[#rest + 2] = record[k], record[k + 1] end
  end
  return rest
end

local answer = {}
for i = 2, #ARGV do
  local id = ARGV[i]
  local record = try('HGETALL', keys.job .. id)
  local f = {}
  for k = 1, #record, 2 do f[record[k]] = record[k + 1] end
  if not f['s'] then
    answer[#answer + 1] = 0
  else
    local place, meta = 0, ''
    if f['s'] == 'q' and f['n'] and f['m'] then
      place = place_of(queue_of(f['m'], f['pv']), f['p'], f['n'])
    elseif f['s'] == 'd' and f['m'] then
      place = due_of(queue_of(f['m'], f['pv']), id)
    elseif ARGV[1] == '1' and (f['s'] == 's' or f['s'] == 'f') then
      meta = not f['r'] and call('GET', keys.meta .. id) or ''
    end
    if f['r'] and ARGV[1] ~= '1' then record = without(record, 'r') end
    answer[#answer + 1] = {record, meta, place}
  end
end
return answer
