-- @include bucket
-- The jobs of models whose schedule is `tokens`: their tokens, and the order in which they run. See
-- docs/architecture/token-schedule.md. A record's `tk` is "<tokens> <deadline in s or ~> <prefix or ->".
-- Tokens a second are a mean over about this time.
local PACE_US = 30 * 1000000

-- The entry of a waiting job among those of its list. Entries have one order for the whole list: by deadline, API key,
-- prefix and place.
local function order_entry(tokens, key, ticket, id)
  local deadline, prefix = string.match(tokens, '^%d+ (%S+) (%S+)$')
  return (deadline or '~') .. ' ' .. (key or '-') .. ' ' .. (prefix or '-') .. ' '
    .. string.format('%016.0f', ticket + 1e15) .. ' ' .. id
end

local function tokens_in(tokens) return tonumber(string.match(tokens, '^%d+')) or 0 end

-- Adds a job that has just joined a list at this place to the order. A key of another type does no harm: then the job
-- waits by its place.
local function join_order(queue, s, id, ticket)
  local tokens, key = unpack(call('HMGET', keys.job .. id, 'tk', 'ky'))
  if not tokens then return end
  try('ZADD', keys.order .. list_of(queue, s), 0, order_entry(tokens, key, ticket, id))
end

-- Counts more or fewer tokens of jobs of a queue that have not ended.
local function count_tokens(queue, n)
  local left = try('HINCRBY', keys.count .. queue, 'tokens', whole(n))
  if type(left) == 'number' and left <= 0 then try('HDEL', keys.count .. queue, 'tokens') end
end

-- Takes a job out of the order of its queue, where it may be if no worker had to choose.
local function leave_order(queue, id)
  local tokens, key, ticket, step = unpack(call('HMGET', keys.job .. id, 'tk', 'ky', 'n', 'p'))
  if not tokens or not tonumber(ticket) then return end
  try('ZREM', keys.order .. list_of(queue, STEP_INDEX[step or '0'] or 1),
    order_entry(tokens, key, tonumber(ticket), id))
end

-- How many tokens a second have ended lately, by the note in `pace`: "<recent tokens> <when noted> <since when>".
local function tokens_a_second(pace)
  local sum, at, since = string.match(pace or '', '^(%S+) (%d+) (%d+)$')
  if not sum then return 0 end
  local faded = tonumber(sum) * math.exp(-(NOW_US - tonumber(at)) / PACE_US)
  -- A young mean has not seen the whole time.
  local seen = 1 - math.exp(-math.max(1e6, NOW_US - tonumber(since)) / PACE_US)
  return faded / seen / PACE_US * 1e6
end

-- Lets a job count with what it used against the tokens a minute of its API key, in place of the estimate.
local function count_used(owner, tokens, used)
  local minute = tonumber(try('HGET', keys.api_key .. owner, 'tokens_per_minute')) or 0
  if minute > 0 then take_minutes_tokens(owner, minute, used - tokens_in(tokens)) end
end

-- Counts the end of a job with tokens. `ran`: its tokens were made; `used`: how many it used, nil if that is unknown.
local function end_tokens(queue, id, tokens, ran, owner, used)
  leave_order(queue, id)
  if owner and used then count_used(owner, tokens, used) end
  count_tokens(queue, -tokens_in(tokens))
  if not ran then return end
  local pace = try('HGET', keys.count .. queue, 'pace')
  local sum, at, since = string.match(type(pace) == 'string' and pace or '', '^(%S+) (%d+) (%d+)$')
  -- After a long pause it begins again.
  if not sum or NOW_US - tonumber(at) > 10 * PACE_US then sum, at, since = '0', NOW, NOW end
  local faded = tonumber(sum) * math.exp(-(NOW_US - tonumber(at)) / PACE_US) + tokens_in(tokens)
  try('HSET', keys.count .. queue, 'pace', string.format('%.3f', faded) .. ' ' .. NOW .. ' ' .. since)
end
