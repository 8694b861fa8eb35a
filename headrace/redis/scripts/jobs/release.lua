-- @include release
-- Release leased jobs of one queue to the head of their lists, in the order in which they were claimed.
-- KEYS: the queue's. ARGV: 1 queue, 2 mode (free, alone, crash or lost), 3 losses, 4 how and 5 traceback or '' (see
--       lib/release.lua), then per job: id, token, when it began in us ('': unknown), for how many ms it waited for the
--       device, timings.
-- Returns per job what became of it: queued, delayed, cancelled, dead, gone, or fenced.
check_types(true)
local answer, ours, traceback = {}, {}, ARGV[5] ~= '' and ARGV[5] or nil
for i = 6, #ARGV, 5 do
  local n = (i - 1) / 5
  local token, state = unpack(read(ARGV[i], 't', 's'))
  answer[n] = 'fenced'
  if token == ARGV[i + 1] and state == 'r' then
    ours[#ours + 1] = {id = ARGV[i], token = tonumber(token), n = n, run = ARGV[i + 2] ~= '' and {unpack(ARGV, i + 2, i + 4)}}
  end
end
for _, c in ipairs(latest_first(ours)) do
  -- If a job is named twice in one call, it is released already at the second time.
  answer[c.n] = release(c.id, ARGV[2], ARGV[3], ARGV[1], ARGV[4], traceback, c.run)
end
return answer
