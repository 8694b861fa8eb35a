-- @include order, failure
-- Removing waiting jobs from their queues, for scripts that end them one by one.
-- A list is compacted when it has this many tombstones, and more tombstones than messages.
local COMPACT_MIN = 10000
-- The lists from which this call has removed something: their queue and step.
local touched = {}

local function waits(state) return state == 'q' or state == 'd' end

-- Reads a queue's own keys as the types that they should have, so that a wrong type fails before any write.
local function check_waiting(queue)
  call('ZCARD', keys.delayed .. queue); call('HLEN', keys.parked .. queue)
  call('HLEN', keys.count .. queue); call('HLEN', keys.tomb .. queue)
  for s = 1, 4 do call('LLEN', list_of(queue, s)) end
end

-- Replaces the message of a waiting job by a tombstone at the place that its ticket names, and returns the message.
-- Returns false if another message is there, as after neighbours were released or the list was compacted.
local function clear_message(list, step, id, ticket, out)
  local at = tonumber(ticket or '0') - (tonumber(out or '0') or 0)
  local raw = at > 0 and call('LINDEX', list, -at)
  local ours = raw and string.find(raw, '"id":"' .. id .. '"', 1, true)
  if not ours and not (raw and string.find(raw, '"id": "' .. id .. '"', 1, true)) then return false end
  call('LSET', list, -at, TOMBSTONE)
  return raw
end

-- Removes a waiting job from its queue; returns its message, if that was found.
local function remove_queued(queue, id, state, step, ticket)
  call('ZREM', keys.delayed .. queue, id)
  local raw = call('HGET', keys.parked .. queue, id)
  call('HDEL', keys.parked .. queue, id)
  if state == 'q' then
    local list = list_of(queue, STEP_INDEX[step] or 1)
    local out = call('HGET', keys.count .. queue, 'out' .. step)
    raw = clear_message(list, step, id, ticket, out)
    if not raw then
      -- The message stays in the list. Its tomb entry outlives the record, so that a claim drops it however late.
      call('HSET', keys.tomb .. queue, id, step)
    end
    call('HINCRBY', keys.count .. queue, 'tomb' .. step, 1)
    touched[list] = {queue, step}
  end
  return raw
end

local function compact()
  for list, t in pairs(touched) do
    local tombs = tonumber(call('HGET', keys.count .. t[1], 'tomb' .. t[2]))
    if tombs >= COMPACT_MIN and tombs > call('LLEN', list) / 2 then
      call('HINCRBY', keys.count .. t[1], 'tomb' .. t[2], -call('LREM', list, 0, TOMBSTONE))
    end
  end
end

-- Putting a job that has failed back into its queue, as the job that it was.
-- The fields that its last run left in the record; the client's own fields stay.
local LEFT = {'a', 'k', 'x', 'xa', 'xl', 't', 'o', 'st', 'en', 'b', 'tm', 'dw', 'rt', 'e', 'dl', 'cr', 'rn', 'fw', 'sg', 'pg', 'pa'}

-- Pushes the message of a job at the end of its list. `state` and `owner` are its record's, nil without a record.
local function requeue_job(queue, s, id, raw, state, owner)
  forget_failure(id)
  call('UNLINK', keys.meta .. id)
  local out = call('HGET', KEYS[7], 'out' .. STEPS[s])
  local ticket = call('LPUSH', KEYS[s], raw) + (tonumber(out or '0') or 0)
  -- Without a record (its result_ttl has passed) the message is like a stock client's: its claim makes a new one.
  if not state then return end
  call('HDEL', keys.job .. id, unpack(LEFT))
  call('HSET', keys.job .. id, 's', 'q', 'n', ticket, 'j', NOW)
  call('PERSIST', keys.job .. id)
  -- It has ended, and will end again. The limit of its API key is not checked, as an operator requeues it.
  if owner then try('HINCRBY', keys.IN_FLIGHT, owner, 1) end
  local tokens = call('HGET', keys.job .. id, 'tk')
  if tokens then
    count_tokens(queue, tokens_in(tokens))
    join_order(queue, s, id, ticket)
  end
end
