-- @include queues
-- Find the queues with work, among those that no worker serves at present. Work is jobs that wait, delayed jobs that are
-- due, expired leases, and ends whose callbacks are due.
-- KEYS: none. ARGV: 1 until when (in us) leases may be reaped, as for queues/sweep; 2 queues, with a space between.
-- Returns now, then the queues with work.
local reap_until = tonumber(ARGV[1])

-- Most queues are empty. One EXISTS for several of them takes less time than one for each.
local GROUP, KINDS = 16, 7
local answer, group, group_keys = {NOW}, {}, {}

local function is_due(key) return #try('ZRANGEBYSCORE', key, '-inf', NOW, 'LIMIT', 0, 1) > 0 end

-- A key of the wrong type counts as empty, so that the other queues can be read.
local function has_messages(queue)
  local tombs = try('HMGET', keys.count .. queue, 'tomb0', 'tomb3', 'tomb6', 'tomb9')
  for s = 1, 4 do
    local length = try('LLEN', list_of(queue, s))
    if type(length) == 'number' and length > (tonumber(tombs[s] or '0') or 0) then return true end
  end
  return false
end

local function has_work(queue)
  if has_messages(queue) and not is_paused(queue) then return true end
  if is_due(keys.delayed .. queue) or is_due(keys.orphaned .. queue) then return true end
  return NOW_US <= reap_until and is_due(keys.lease .. queue)
end

local function look()
  if #group > 0 and call('EXISTS', unpack(group_keys)) > 0 then
    for _, queue in ipairs(group) do
      if has_work(queue) then answer[#answer + 1] = queue end
    end
  end
  group, group_keys = {}, {}
end

for queue in string.gmatch(ARGV[2], '%S+') do
  local n = #group * KINDS
  group[#group + 1] = queue
  for s = 1, 4 do group_keys[n + s] = list_of(queue, s) end
  group_keys[n + 5] = keys.delayed .. queue
  group_keys[n + 6] = keys.lease .. queue
  group_keys[n + 7] = keys.orphaned .. queue
  if #group == GROUP then look() end
end
look()
return answer
